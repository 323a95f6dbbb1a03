#include "tutti/systems/preprocess.h"

#include <fmt/format.h>

#include <set>

#include "tutti/core/error.h"
#include "tutti/data/preprocess.h"
#include "tutti/speech/text/cleaners.h"
#include "tutti/speech/text/sentencepiece_file.h"
#include "tutti/systems/models/s2t_preprocess.h"
#include "tutti/systems/models/task_settings.h"
#include "tutti/systems/preprocessor_settings.h"

namespace tutti::systems {
using config::Node;

namespace {

// A sentencepiece model of another run makes tokens that mean something else, or that the list lacks.
void refuse_misfit(const speech::TokenList& tokens, const std::string& bpemodel) {
  const speech::SentencePieceFile file = speech::read_sentencepiece_file(bpemodel);
  std::set<std::string_view> pieces;
  for (const speech::Piece& piece : file.pieces) pieces.insert(piece.text);
  int count = 0;
  std::string example;
  for (const std::string& token : tokens.tokens()) {
    const bool is_mark = token.starts_with('<') && token.ends_with('>');
    if (is_mark || pieces.contains(token)) continue;
    if (count++ == 0) example = token;
  }
  if (count > 0)
    throw DataError(
        fmt::format("{}: does not fit the token list: {} of its {} tokens are no pieces "
                    "of it, e.g. '{}'",
                    bpemodel, count, tokens.size(), example),
        "give the sentencepiece model that the token list was made of");
}

speech::TextCodec codec_of(const TextSettings& text) {
  if (text.token_list.is_null())
    throw ConfigError("model.token_list: got nothing, expected a file or a list of tokens");
  const Node& list = text.token_list;
  speech::TokenList tokens =
      list.is_list() ? speech::TokenList(list.as<std::vector<std::string>>(), list.path())
                     : speech::TokenList::read(list.as<std::string>());
  if (text.token_type == "bpe" && !text.bpemodel.empty()) refuse_misfit(tokens, text.bpemodel);
  return {std::move(tokens), speech::make_tokenizer({.token_type = text.token_type,
                                                     .bpemodel = text.bpemodel,
                                                     .non_linguistic_symbols =
                                                         text.preprocessor.non_linguistic_symbols,
                                                     .space_symbol = text.preprocessor.space_symbol,
                                                     .delimiter = text.preprocessor.delimiter})};
}

TextSettings text_settings(const Node& training) {
  config::Problems problems;
  TextSettings text = read_text_settings(training, problems);
  problems.throw_if_any();
  return text;
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

PreprocessorSettings settings_of(const Node& block) {
  config::Problems problems;
  auto settings = read_preprocessor(block, problems);
  problems.throw_if_any();
  return settings;
}

}  // namespace

speech::TextCodec make_codec(const Node& training) { return codec_of(text_settings(training)); }

data::Prepare make_prepare(const Node& training, bool is_training, std::uint64_t seed) {
  const TextSettings all = text_settings(training);
  const PreprocessorSettings& settings = all.preprocessor;
  const auto codec = std::make_shared<const speech::TextCodec>(codec_of(all));
  data::PreprocessParts parts;
  const auto clean = std::make_shared<const speech::TextCleaner>(settings.text_cleaner);
  parts.tokenize = [codec, clean](const std::string& text) {
    const auto ids = codec->encode((*clean)(text)).ids;
    return std::vector<std::int64_t>(ids.begin(), ids.end());
  };
  if (is_training && !settings.noise_scp.empty())
    parts.noises = open_recordings(settings.noise_scp);
  if (is_training && !settings.rir_scp.empty()) parts.rirs = open_recordings(settings.rir_scp);
  const data::Mode mode = is_training ? data::Mode::kTrain : data::Mode::kEval;
  std::shared_ptr<const S2tPreprocessor> prompts;
  if (is_s2t(training)) {
    const Node weight = training["model"]["model_conf"]["ctc_weight"];
    prompts = std::make_shared<const S2tPreprocessor>(
        settings, owsm_symbols(training), codec->tokens(), std::exchange(parts.tokenize, {}),
        all.token_type == "word", weight.value_or(0.5) > 0, seed, mode);
  }
  const auto preprocessor =
      std::make_shared<const data::Preprocessor>(settings, std::move(parts), seed, mode);
  return [preprocessor, prompts](data::Sample& sample, std::uint64_t epoch) {
    (*preprocessor)(sample, epoch);
    if (prompts) (*prompts)(sample, epoch);
  };
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
  const PreprocessorSettings settings = settings_of(block);
  Json out = {{"token_type", config::to_json(block["token_type"])},
              {"text_cleaner", config::to_json(block["text_cleaner"])},
              {"volume_normalize", settings.volume_normalize},
              {"pad_samples", settings.pad_samples},
              {"min_samples", settings.min_samples},
              {"max_samples", settings.max_samples}};
  if (is_s2t(training)) out["speech_length"] = settings.speech_length;
  return out;
}

}  // namespace tutti::systems
