#include "tutti/systems/preprocessor_settings.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <tuple>

#include "tutti/config/schemas/files.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/cleaners.h"
#include "tutti/systems/models/task_settings.h"

namespace tutti::systems {
namespace {

using config::Node;
using config::Problems;
using config::Schema;
using S = PreprocessorSettings;

// A member of the base as one of the derived struct: schemas take only those.
template <class F, class Base>
F S::*own(F Base::*member) {
  return member;
}

std::optional<double> decibels(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) return std::nullopt;
  return value;
}

// "13_15", as ESPnet writes a range of decibels.
void read_noise_range(const Node& node, S& out, Problems& problems) {
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

void read_effects(S& out, Problems& problems) {
  out.effects = data::parse_effects(out.data_aug_effects, problems);
  std::string expected;
  if (!out.data_aug_prob.is_null() && !read(out.data_aug_prob, out.effects_prob, expected))
    problems.add(out.data_aug_prob,
                 "got " + out.data_aug_prob.describe_value() + ", expected " + expected);
  if (out.data_aug_num.is_null()) return;
  std::vector<std::uint64_t> numbers;
  if (!read(out.data_aug_num, numbers, expected) || numbers.size() != 2 ||
      numbers[0] > numbers[1] || numbers[1] == 0)
    problems.add(out.data_aug_num,
                 "got " + out.data_aug_num.describe_value() + ", expected [least, most] effects");
  else
    std::tie(out.min_effects, out.max_effects) = std::pair(numbers[0], numbers[1]);
}

// One word or a list of them.
void read_words(const Node& node, std::vector<std::string>& out, Problems& problems) {
  if (node.is_null()) return;
  std::string expected;
  if (node.is_scalar())
    out = {node.raw()};
  else if (!read(node, out, expected))
    problems.add(node, "got " + node.describe_value() + ", expected text or a list of texts");
}

// A list, or a file with one symbol per line.
void read_symbols(const Node& node, std::vector<std::string>& out, Problems& problems) {
  if (!node.is_scalar()) return read_words(node, out, problems);
  if (!std::filesystem::exists(node.raw())) {
    problems.add(node, "file not found: " + node.raw(), "write a list, or check the path");
    return;
  }
  for (const auto& line : split(read_file(node.raw()), '\n'))
    if (!trim(line).empty()) out.emplace_back(trim(line));
}

// ESPnet's name of a key and ours; the value is the same.
constexpr std::pair<const char*, const char*> kRenamed[] = {
    {"speed_perturb", "speed_factors"}, {"noise_apply_prob", "noise_prob"},
    {"rir_apply_prob", "rir_prob"},     {"speech_volume_normalize", "volume_normalize"},
    {"min_sample_size", "pad_samples"},
};

void add_speech(Schema<S>& s) {
  using P = data::PreprocessSettings;
  s.field("speed_factors", own(&P::speed_factors),
          "one is drawn per utterance and epoch, e.g. [0.9, 1.0, 1.1]; also speed_perturb",
          {.min = 0.25, .max = 4});
  s.field("noise_scp", own(&P::noise_scp), "noise recordings");
  s.field("noise_prob", own(&P::noise_prob),
          "part of the utterances that get noise; also noise_apply_prob", {.min = 0, .max = 1});
  s.field("noise_db_range", &S::noise_db_range, "signal-to-noise ratio as LOW_HIGH, e.g. 13_15");
  s.field("noise_db_low", own(&P::noise_db_low), "lowest signal-to-noise ratio",
          {.min = -100, .max = 200, .unit = "dB"});
  s.field("noise_db_high", own(&P::noise_db_high), "highest signal-to-noise ratio",
          {.min = -100, .max = 200, .unit = "dB"});
  s.field("rir_scp", own(&P::rir_scp), "room impulse responses");
  s.field("rir_prob", own(&P::rir_prob),
          "part of the utterances that are reverberated; also rir_apply_prob",
          {.min = 0, .max = 1});
  s.field("volume_db_low", own(&P::volume_db_low), "lowest gain",
          {.min = -100, .max = 100, .unit = "dB"});
  s.field("volume_db_high", own(&P::volume_db_high), "highest gain",
          {.min = -100, .max = 100, .unit = "dB"});
  s.field("volume_normalize", own(&P::volume_normalize),
          "peak to scale every utterance to, also in evaluation; 0: off; also "
          "speech_volume_normalize",
          {.min = 0, .max = 1});
  s.field("pad_samples", own(&P::pad_samples),
          "shorter utterances get zeros up to this; 0 or -1: none; also min_sample_size",
          {.min = -1});
  s.field("min_samples", own(&P::min_samples),
          "shorter utterances are refused (see on_bad); 0: no limit", {.min = 0});
  s.field("max_samples", own(&P::max_samples),
          "longer utterances are refused (see on_bad); 0: no limit", {.min = 0});
  s.field("data_aug_effects", &S::data_aug_effects, "effects: [weight, name, {args}]");
  s.field("data_aug_num", &S::data_aug_num, "effects per utterance, [least, most]");
  s.field("data_aug_prob", &S::data_aug_prob, "part of the utterances that get effects",
          {.min = 0, .max = 1});
}

void add_text(Schema<S>& s) {
  s.field("token_type", &S::token_type, "kind of tokens; null: as tokenizer.model_type",
          {.one_of = {"bpe", "char", "word"}});
  s.field("token_list", &S::token_list, "tokens, or a file with one per line; null: the model's");
  s.field("bpemodel", &S::bpemodel, "sentencepiece model; null: the one in tokenizer.save_path");
  s.field("text_cleaner", &S::text_cleaners, "cleaners applied to text, one or a list");
  s.field("space_symbol", &S::space_symbol, "token of a space (char)");
  s.field("non_linguistic_symbols", &S::symbols,
          "symbols kept whole (char, word): a list, or a file with one per line");
  s.field("delimiter", &S::delimiter, "between words of a text (word); empty: white space");
}

// Keys of ESPnet's S2TPreprocessor; another task has no use for them.
constexpr const char* kS2tKeys[] = {
    "na_symbol",           "notime_symbol",     "first_time_symbol",   "last_time_symbol",
    "speech_length",       "speech_resolution", "nolang_symbol",       "lang_apply_prob",
    "speech_init_silence", "time_apply_prob",   "text_prev_apply_prob"};

void add_s2t(Schema<S>& s) {
  using P = S2tSettings;
  s.field("na_symbol", own(&P::na_symbol), "task s2t: the token of a text that is not known");
  s.field("notime_symbol", own(&P::notime_symbol), "task s2t: the token of a text without times");
  s.field("first_time_symbol", own(&P::first_time_symbol), "task s2t: the token of time 0");
  s.field("last_time_symbol", own(&P::last_time_symbol), "task s2t: the token of the last time");
  s.field("speech_length", own(&P::speech_length), "task s2t: every utterance is brought to this",
          {.min = 0.1, .unit = "s"});
  s.field("speech_resolution", own(&P::speech_resolution), "task s2t: between two time tokens",
          {.min = 0.001, .unit = "s"});
  s.field("speech_init_silence", own(&P::speech_init_silence),
          "task s2t: the most silence put before speech in training", {.min = 0, .unit = "s"});
  s.field("text_prev_apply_prob", own(&P::text_prev_apply_prob),
          "task s2t: part of the utterances that are told the text before", {.min = 0, .max = 1});
  s.field("time_apply_prob", own(&P::time_apply_prob),
          "task s2t: part of the utterances that keep their time tokens", {.min = 0, .max = 1});
  s.field("nolang_symbol", own(&P::nolang_symbol), "OWSM-CTC: the token of no language");
  s.field("lang_apply_prob", own(&P::lang_apply_prob),
          "OWSM-CTC: of its training, which is not there", {.min = 0, .max = 1});
  s.refused("text_prev_name", {"text_prev"}, "the text before is always `text_prev` here");
  s.refused("text_ctc_name", {"text_ctc"}, "the text of CTC is always `text_ctc` here");
}

void add_refused(Schema<S>& s) {
  s.refused("g2p_type", {"none"},
            "phonemes are made outside: write them into the texts, with token_type: word");
  s.refused("g2p", {"none"},
            "phonemes are made outside: write them into the texts, with token_type: word");
  s.refused("unk_symbol", {"<unk>"}, "unknown pieces are <unk> here: name it so in the token list");
  s.refused("audio_pad_value", {"0", "0.0"}, "audio is padded with 0 here");
  s.refused("short_noise_thres", {"0.5"}, "noise shorter than speech is repeated here");
  s.refused("speech_name", {"speech"}, "the audio of a sample is always `speech` here");
  s.refused("text_name", {"text"}, "the transcript of a sample is always `text` here");
  s.refused("force_single_channel", {"true", "True", "false", "False"},
            "audio is one channel here; data_src_args.channel chooses it");
}

}  // namespace

Schema<S> preprocessor_schema() {
  Schema<S> s("common_preprocessor", "Makes tokens of text; augments speech in training only.");
  add_text(s);
  add_speech(s);
  add_s2t(s);
  s.field("train", &S::train, "accepted: training data is augmented, other data never");
  s.field("fs", &S::fs, "accepted: model.frontend_conf.fs decides", {.min = 0, .unit = "Hz"});
  add_refused(s);
  s.check([](const Node& node, const S& p, Problems& problems) {
    if (p.noise_db_low > p.noise_db_high)
      problems.add(node["noise_db_low"], fmt::format("got {}, expected at most noise_db_high = {}",
                                                     p.noise_db_low, p.noise_db_high));
    if (p.volume_db_low > p.volume_db_high)
      problems.add(node["volume_db_low"],
                   fmt::format("got {}, expected at most volume_db_high = {}", p.volume_db_low,
                               p.volume_db_high));
    if (p.max_samples > 0 && p.min_samples > p.max_samples)
      problems.add(node["min_samples"], fmt::format("got {}, expected at most max_samples = {}",
                                                    p.min_samples, p.max_samples));
  });
  return s;
}

PreprocessorSettings read_preprocessor(const Node& block, Problems& problems) {
  if (block.is_null()) return {};
  Node node = block;
  if (block.is_map()) {
    auto map = std::make_shared<config::Value>(*block.value());
    for (auto& [key, value] : map->map)
      for (const auto& [theirs, ours] : kRenamed)
        if (key == theirs && !block[ours].defined()) key = ours;
    node = Node(std::move(map), block.path());
  }
  S out = preprocessor_schema().parse(node, problems);
  read_noise_range(out.noise_db_range, out, problems);
  read_effects(out, problems);
  read_words(out.text_cleaners, out.text_cleaner, problems);
  try {
    const speech::TextCleaner tried(out.text_cleaner);
  } catch (const ConfigError& e) {
    problems.add(out.text_cleaners, e.what());
  }
  read_symbols(out.symbols, out.non_linguistic_symbols, problems);
  return out;
}

TextSettings read_text_settings(const Node& training, Problems& problems) {
  TextSettings out;
  const Node block = training["dataset"]["preprocessor"];
  out.preprocessor = read_preprocessor(block, problems);
  if (!is_s2t(training) && !is_s2t_ctc(training))
    for (const char* key : kS2tKeys)
      if (block.is_map() && block[key].defined())
        problems.add(block[key], "only a model of task s2t (OWSM) has a use for it",
                     "remove it, or set task: espnet2.tasks.s2t.S2TTask");
  out.token_list = !out.preprocessor.token_list.is_null() ? out.preprocessor.token_list
                                                          : training["model"]["token_list"];
  const Node tokenizer = training["tokenizer"];
  Problems ignored;  // of the tokenizer's own block, which is checked by itself
  const auto trained = config::tokenizer_schema().parse(tokenizer, ignored);
  // Unigram pieces come from a sentencepiece model too.
  const std::string kind =
      trained.model_type == "char" || trained.model_type == "word" ? trained.model_type : "bpe";
  const bool has_tokenizer = tokenizer.is_map();
  out.token_type = out.preprocessor.token_type.value_or(has_tokenizer ? kind : "bpe");
  // A sentencepiece model from elsewhere is the user's choice; one beside the token list would have to be trained.
  const bool has_own_model =
      out.preprocessor.bpemodel &&
      (trained.save_path.empty() || !out.preprocessor.bpemodel->starts_with(trained.save_path));
  if (has_tokenizer && out.token_type != kind && !has_own_model)
    problems.add(
        block["token_type"],
        fmt::format("got '{}', but tokenizer.model_type is '{}'", out.token_type,
                    trained.model_type),
        fmt::format("set token_type: {}, or tokenizer.model_type: {}", kind, out.token_type));
  if (out.token_type == "bpe")
    out.bpemodel = out.preprocessor.bpemodel.value_or(
        trained.save_path.empty()
            ? ""
            : fmt::format("{}/{}.model", trained.save_path, trained.model_type));
  if (out.token_type == "bpe" && out.bpemodel.empty() && !out.token_list.is_null())
    problems.add(block.is_map() ? block : training["dataset"], "no sentencepiece model is named",
                 "set preprocessor.bpemodel, tokenizer.save_path, or token_type: char or word");
  return out;
}

}  // namespace tutti::systems
