#include "tutti/speech/decoding/owsm_search.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "tutti/core/error.h"
#include "tutti/speech/decoding/asr_search.h"

namespace tutti::speech {
namespace {

constexpr const char* kGuessLanguage = "auto";

Encoded select_rows(const Encoded& encoded, const std::vector<std::int64_t>& rows,
                    torch::Device device) {
  Encoded out = encoded;
  out.out = encoded.out.index_select(0, to_device(rows, device));
  out.lengths.clear();
  for (const std::int64_t row : rows)
    out.lengths.push_back(encoded.lengths[static_cast<std::size_t>(row)]);
  return out;
}

}  // namespace

OwsmSearch::OwsmSearch(AsrModel model, const TextCodec& codec, const Speech2TextOptions& options,
                       torch::Device device, LanguageModel lm)
    : model_(std::move(model)),
      lm_(std::move(lm)),
      codec_(codec),
      options_(options),
      device_(device),
      tokens_(codec.tokens(), options.owsm) {
  if (model_->decoder.is_empty())
    throw ConfigError("lang_sym: got " + options_.lang_sym +
                      ", but the model has no attention decoder to prompt");
  const TokenList& list = codec.tokens();
  if (options_.lang_sym != kGuessLanguage) require_language(list, options_.lang_sym, "lang_sym");
  require_task(list, options_.task_sym);
  if (options_.predict_time && options_.ctc_weight > 0)
    throw ConfigError(fmt::format("ctc_weight: got {} with predict_time, but CTC knows no times",
                                  options_.ctc_weight),
                      "set ctc_weight: 0.0");
  if (!options_.first_lang_sym.empty() || !options_.last_lang_sym.empty()) {
    const int end = require_language(list, options_.last_lang_sym, "last_lang_sym");
    for (int id = require_language(list, options_.first_lang_sym, "first_lang_sym"); id <= end;
         ++id)
      language_ids_.push_back(id);
  } else {
    for (const std::string& language : owsm_languages(list))
      language_ids_.push_back(tokens_.require(language));
  }
  BeamSearch(search_model(model_, lm_), options_for({}));  // complains about the rest
}

BeamSearchOptions OwsmSearch::options_for(std::vector<std::int64_t> prompt) const {
  return {.beam_size = options_.beam_size,
          .ctc_weight = options_.ctc_weight,
          .lm_weight = options_.lm_weight.value_or(0.0),
          .penalty = options_.penalty,
          .maxlenratio = options_.maxlenratio,
          .minlenratio = options_.minlenratio,
          .normalize_length = options_.normalize_length,
          .nbest = options_.nbest,
          .prompt = std::move(prompt),
          .times = TimeTokens{tokens_.no_times(), tokens_.first_time(), tokens_.last_time(),
                              model_->settings().sos_id, model_->settings().eos_id}};
}

std::vector<LongSegment> OwsmSearch::segments(const Recognition& recognition) const {
  std::vector<std::int64_t> ids(recognition.token_ids.begin(), recognition.token_ids.end());
  const auto times =
      std::count_if(ids.begin(), ids.end(), [&](std::int64_t id) { return tokens_.is_time(id); });
  if (times % 2 == 1) ids.push_back(tokens_.last_time());
  std::vector<LongSegment> out;
  if (times == 0) return out;
  // None is left to a next window: no end lies behind the window's.
  for (const TimedTokens& said : tokens_.segments(std::move(ids), tokens_.window()).utterances) {
    const std::vector<int> said_ids(said.tokens.begin(), said.tokens.end());
    out.push_back({said.begin, said.end, spoken_text(codec_, codec_.tokens().pieces(said_ids))});
  }
  return out;
}

std::vector<std::vector<LanguageGuess>> OwsmSearch::languages(const Encoded& encoded,
                                                              std::size_t nbest) const {
  if (language_ids_.empty()) throw DataError("token list: there are no language tokens in it");
  const auto count = static_cast<std::int64_t>(encoded.lengths.size());
  TransformerDecoder decoder = model_->decoder;
  DecoderCache cache = decoder->start(encoded.out, encoded.lengths, /*beam=*/1);
  const torch::Tensor sos =
      torch::full({count, 1}, model_->settings().sos_id, torch::kInt64).to(device_);
  const torch::Tensor probs = decoder->step(sos, cache)
                                  .index_select(1, to_device(language_ids_, device_))
                                  .to(torch::kFloat32)
                                  .softmax(1);
  decoder->keep(std::move(cache));
  const auto most = static_cast<std::int64_t>(std::min(nbest, language_ids_.size()));
  const auto [values, places] = probs.topk(most, 1);
  const torch::Tensor value = values.to(torch::kCPU), place = places.to(torch::kCPU);
  std::vector<std::vector<LanguageGuess>> out(encoded.lengths.size());
  for (std::int64_t u = 0; u < count; ++u) {
    for (std::int64_t k = 0; k < most; ++k) {
      const auto at = static_cast<std::size_t>(place[u][k].item<std::int64_t>());
      out[static_cast<std::size_t>(u)].push_back(
          {codec_.tokens().token(static_cast<int>(language_ids_[at])), value[u][k].item<double>()});
    }
  }
  return out;
}

std::vector<std::string> OwsmSearch::language_per_utterance(const Encoded& encoded) const {
  if (options_.lang_sym != kGuessLanguage)
    return std::vector<std::string>(encoded.lengths.size(), options_.lang_sym);
  std::vector<std::string> out;
  for (const auto& guesses : languages(encoded, 1)) out.push_back(guesses[0].language);
  return out;
}

std::vector<std::vector<Recognition>> OwsmSearch::search_language(const Encoded& encoded,
                                                                  const std::string& language,
                                                                  const OwsmCall& call) const {
  OwsmPrompt prompt{.language = language, .task = options_.task_sym, .timestamps = call.timestamps};
  if (call.previous) {
    const std::vector<int> ids = codec_.encode(*call.previous).ids;
    prompt.previous.emplace(ids.begin(), ids.end());
  }
  std::vector<int> marks{static_cast<int>(tokens_.require(language)),
                         static_cast<int>(tokens_.require(options_.task_sym))};
  if (!call.timestamps) marks.push_back(static_cast<int>(tokens_.no_times()));
  const BeamSearch search(search_model(model_, lm_), options_for(tokens_.prompt(prompt)));
  const auto results = search.decode(encoded.out, encoded.lengths);
  std::vector<std::vector<Recognition>> out(results.size());
  for (std::size_t u = 0; u < results.size(); ++u) {
    for (const Hypothesis& h : results[u].nbest) {
      Recognition r;
      for (const std::int64_t id : h.tokens)
        if (id != model_->settings().blank_id) r.token_ids.push_back(static_cast<int>(id));
      r.tokens = codec_.tokens().pieces(r.token_ids);
      r.text = spoken_text(codec_, r.tokens);
      r.score = h.score;
      r.decoder_score = h.decoder_score;
      r.ctc_score = h.ctc_score;
      r.language = language;
      std::vector<int> all = marks;
      all.insert(all.end(), r.token_ids.begin(), r.token_ids.end());
      r.full_text = codec_.decode(all);
      out[u].push_back(std::move(r));
    }
    if (out[u].empty()) out[u].emplace_back();
  }
  return out;
}

// Utterances of one language have one prompt and are in one search.
std::vector<std::vector<Recognition>> OwsmSearch::run(const Encoded& encoded,
                                                      const OwsmCall& call) const {
  std::map<std::string, std::vector<std::int64_t>> rows_of;
  const std::vector<std::string> language = language_per_utterance(encoded);
  for (std::size_t u = 0; u < language.size(); ++u)
    rows_of[language[u]].push_back(static_cast<std::int64_t>(u));
  if (rows_of.size() == 1) return search_language(encoded, language[0], call);
  std::vector<std::vector<Recognition>> out(language.size());
  for (const auto& [name, rows] : rows_of) {
    auto found = search_language(select_rows(encoded, rows, device_), name, call);
    for (std::size_t i = 0; i < rows.size(); ++i)
      out[static_cast<std::size_t>(rows[i])] = std::move(found[i]);
  }
  return out;
}

}  // namespace tutti::speech
