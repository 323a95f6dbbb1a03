#include "tutti/systems/preprocess.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/data/preprocess.h"

namespace tutti::systems {
namespace {

using config::Node;

// The first of the given keys that is there.
Node first_of(std::initializer_list<Node> nodes) {
  for (const Node& node : nodes)
    if (!node.is_null()) return node;
  return {};
}

// The same map without some keys.
Node without(const Node& map, std::initializer_list<std::string_view> keys) {
  if (!map.is_map()) return map;
  auto copy = std::make_shared<config::Value>(*map.value());
  std::erase_if(copy->map, [&](const auto& entry) {
    return std::find(keys.begin(), keys.end(), entry.first) != keys.end();
  });
  return Node(copy, map.path());
}

}  // namespace

speech::TextCodec make_codec(const Node& training) {
  const Node block = training["dataset"]["preprocessor"];
  const Node list = first_of({block["token_list"], training["model"]["token_list"]});
  if (list.is_null())
    throw ConfigError("model.token_list: got nothing, expected a file or a list of tokens");
  const Node save_path = training["tokenizer"]["save_path"];
  const Node model_type = training["tokenizer"]["model_type"];
  speech::TokenizerConfig tokenizer;
  if (!block["token_type"].is_null())
    tokenizer.token_type = block["token_type"].as<std::string>();
  else if (!model_type.is_null() && (model_type.raw() == "char" || model_type.raw() == "word"))
    tokenizer.token_type = model_type.raw();
  if (tokenizer.token_type == "bpe") {
    tokenizer.bpemodel = block["bpemodel"].value_or<std::string>(
        save_path.is_null()
            ? ""
            : fmt::format("{}/{}.model", save_path.raw(), model_type.value_or<std::string>("bpe")));
  }
  speech::TokenList tokens =
      list.is_list() ? speech::TokenList(list.as<std::vector<std::string>>(), list.path())
                     : speech::TokenList::read(list.as<std::string>());
  return {std::move(tokens), speech::make_tokenizer(tokenizer)};
}

data::Prepare make_prepare(const Node& training, bool is_training, std::uint64_t seed) {
  const auto codec = std::make_shared<const speech::TextCodec>(make_codec(training));
  const Node block = training["dataset"]["preprocessor"];
  config::Problems problems;
  // The keys that make the tokens are read by make_codec; the rest is augmentation.
  const auto settings = data::preprocess_schema().parse(
      without(block, {"token_list", "token_type", "bpemodel", "train"}), problems);
  problems.throw_if_any();
  data::PreprocessParts parts;
  parts.tokenize = [codec](const std::string& text) {
    const auto ids = codec->encode(text).ids;
    return std::vector<std::int64_t>(ids.begin(), ids.end());
  };
  if (!settings.noise_scp.empty())
    parts.noises = data::open_manifest(data::read_kaldi_manifest({.wav_scp = settings.noise_scp}));
  if (!settings.rir_scp.empty())
    parts.rirs = data::open_manifest(data::read_kaldi_manifest({.wav_scp = settings.rir_scp}));
  const auto preprocessor = std::make_shared<const data::Preprocessor>(
      settings, std::move(parts), seed, is_training ? data::Mode::kTrain : data::Mode::kEval);
  return
      [preprocessor](data::Sample& sample, std::uint64_t epoch) { (*preprocessor)(sample, epoch); };
}

}  // namespace tutti::systems
