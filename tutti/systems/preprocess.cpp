#include "tutti/systems/preprocess.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <tuple>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/data/preprocess.h"
#include "tutti/speech/text/cleaners.h"

namespace tutti::systems {
namespace {

using config::Node;

// The first of the given keys that is there.
Node first_of(std::initializer_list<Node> nodes) {
  for (const Node& node : nodes)
    if (!node.is_null()) return node;
  return {};
}

// ESPnet's name of a key and ours; the value is the same.
constexpr std::pair<const char*, const char*> kRenamed[] = {
    {"speed_perturb", "speed_factors"}, {"noise_apply_prob", "noise_prob"},
    {"rir_apply_prob", "rir_prob"},     {"speech_volume_normalize", "volume_normalize"},
    {"min_sample_size", "pad_samples"},
};
// Read by make_codec, by augmentation() itself, or true here whatever they say: audio is one
// channel, noise shorter than speech is repeated, and the frontend pads what is short.
constexpr std::string_view kElsewhere[] = {"_target_",
                                           "token_list",
                                           "token_type",
                                           "bpemodel",
                                           "train",
                                           "fs",
                                           "noise_db_range",
                                           "text_cleaner",
                                           "data_aug_num",
                                           "data_aug_prob",
                                           "data_aug_effects",
                                           "short_noise_thres",
                                           "speech_name",
                                           "text_name",
                                           "audio_pad_value",
                                           "force_single_channel"};

std::optional<double> decibels(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) return std::nullopt;
  return value;
}

// "13_15", as ESPnet writes a range of decibels.
void read_noise_range(const Node& node, data::PreprocessSettings& out, config::Problems& problems) {
  if (node.is_null()) return;
  const auto parts = split(node.is_scalar() ? node.raw() : "", '_');
  const auto low = decibels(parts[0]);
  const auto high = parts.size() < 2 ? low : decibels(parts[1]);
  if (parts.size() > 2 || !low || !high || *low > *high) {
    problems.add(node, "got " + node.describe_value() + ", expected LOW_HIGH in dB, e.g. 5_20");
    return;
  }
  out.noise_db_low = *low;
  out.noise_db_high = *high;
}

// The preprocessor block with ESPnet's keys or ours.
data::PreprocessSettings augmentation(const Node& block, config::Problems& problems) {
  if (block.is_null()) return {};
  auto map = std::make_shared<config::Value>(*block.value());
  std::erase_if(map->map, [&](const auto& entry) {
    return std::find(std::begin(kElsewhere), std::end(kElsewhere), entry.first) !=
           std::end(kElsewhere);
  });
  map->key_marks.clear();
  for (auto& [key, value] : map->map)
    for (const auto& [theirs, ours] : kRenamed)
      if (key == theirs) key = ours;
  // A null in a file of theirs means "off", which is what an absent key is here.
  std::erase_if(map->map, [](const auto& entry) { return Node(entry.second).is_null(); });
  auto settings = data::preprocess_schema().parse(Node(map, block.path()), problems);
  read_noise_range(block["noise_db_range"], settings, problems);
  settings.effects = data::parse_effects(block["data_aug_effects"], problems);
  settings.effects_prob = block["data_aug_prob"].value_or(0.0);
  if (const Node range = block["data_aug_num"]; !range.is_null()) {
    const auto numbers = range.as<std::vector<std::size_t>>();
    if (numbers.size() != 2 || numbers[0] > numbers[1] || numbers[1] == 0)
      problems.add(range, "got " + range.describe_value() + ", expected [least, most] effects");
    else
      std::tie(settings.min_effects, settings.max_effects) = std::pair(numbers[0], numbers[1]);
  }
  return settings;
}

// Noises or impulse responses. Relative paths start at the working folder, as Kaldi's do; where they
// are not there, at the list's own folder, so that a list can move with its files.
std::shared_ptr<const data::Dataset> open_recordings(const std::string& scp) {
  namespace fs = std::filesystem;
  data::Manifest list = data::read_kaldi_manifest({.wav_scp = scp});
  if (list.size() > 0 && !fs::exists(std::string(list.entry(0).audio)))
    list = data::read_kaldi_manifest({.wav_scp = scp, .root = fs::path(scp).parent_path()});
  return data::open_manifest(std::move(list));
}

data::PreprocessSettings settings_of(const Node& block) {
  config::Problems problems;
  auto settings = augmentation(block, problems);
  problems.throw_if_any();
  return settings;
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
  const data::PreprocessSettings settings = settings_of(block);
  data::PreprocessParts parts;
  const Node cleaner = block["text_cleaner"];
  const auto clean = std::make_shared<const speech::TextCleaner>(
      cleaner.is_null()   ? std::vector<std::string>{}
      : cleaner.is_list() ? cleaner.as<std::vector<std::string>>()
                          : std::vector<std::string>{cleaner.as<std::string>()});
  parts.tokenize = [codec, clean](const std::string& text) {
    const auto ids = codec->encode((*clean)(text)).ids;
    return std::vector<std::int64_t>(ids.begin(), ids.end());
  };
  if (is_training && !settings.noise_scp.empty())
    parts.noises = open_recordings(settings.noise_scp);
  if (is_training && !settings.rir_scp.empty()) parts.rirs = open_recordings(settings.rir_scp);
  const auto preprocessor = std::make_shared<const data::Preprocessor>(
      settings, std::move(parts), seed, is_training ? data::Mode::kTrain : data::Mode::kEval);
  return
      [preprocessor](data::Sample& sample, std::uint64_t epoch) { (*preprocessor)(sample, epoch); };
}

std::function<void(data::Sample&)> make_inference_prepare(const Node& training) {
  data::PreprocessSettings settings = settings_of(training["dataset"]["preprocessor"]);
  settings.max_samples = 0;  // long recordings are cut, not refused
  const auto preprocessor = std::make_shared<const data::Preprocessor>(
      settings, data::PreprocessParts{}, 0, data::Mode::kEval);
  return [preprocessor](data::Sample& sample) { (*preprocessor)(sample, 0); };
}

Json decisive_preprocessing(const Node& training) {
  const Node block = training["dataset"]["preprocessor"];
  const data::PreprocessSettings settings = settings_of(block);
  return {{"token_type", config::to_json(block["token_type"])},
          {"text_cleaner", config::to_json(block["text_cleaner"])},
          {"volume_normalize", settings.volume_normalize},
          {"pad_samples", settings.pad_samples},
          {"min_samples", settings.min_samples},
          {"max_samples", settings.max_samples}};
}

}  // namespace tutti::systems
