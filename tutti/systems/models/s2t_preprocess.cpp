#include "tutti/systems/models/s2t_preprocess.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"

namespace tutti::systems {

std::string with_marks_apart(const std::string& text, const speech::TokenList& tokens,
                             bool cuts_at_blanks) {
  std::string out;
  bool at_beginning = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text[at] == '<' ? text.find('>', at) : std::string::npos;
    const std::string mark = end == std::string::npos ? "" : text.substr(at, end - at + 1);
    if (!mark.empty() && tokens.find(mark) >= 0) {
      if (at_beginning) out = std::string(trim(out));
      out += cuts_at_blanks ? " " + mark + " " : mark;
      at += mark.size();
    } else {
      if (text[at] != ' ') at_beginning = false;
      out += text[at++];
    }
  }
  return out;
}

S2tPreprocessor::S2tPreprocessor(const S2tSettings& settings, const speech::OwsmSymbols& symbols,
                                 const speech::TokenList& tokens, data::Tokenize tokenize,
                                 bool cuts_at_blanks, bool needs_ctc, std::uint64_t seed,
                                 data::Mode mode)
    : settings_(settings),
      tokens_(tokens),
      tokenize_(std::move(tokenize)),
      cuts_at_blanks_(cuts_at_blanks),
      needs_ctc_(needs_ctc),
      seed_(seed),
      mode_(mode) {
  const speech::OwsmTokens marks(tokens_, symbols);  // refuses a list whose times do not fit
  no_times_ = marks.no_times();
  first_time_ = marks.first_time();
  last_time_ = marks.last_time();
  not_available_ = marks.require(symbols.not_available);
  previous_ = marks.require(symbols.previous);
}

std::int64_t S2tPreprocessor::fit_speech(data::Sample& sample, std::uint64_t epoch) const {
  if (sample.feature_dim > 0)
    throw DataError(sample.uid + ": features made elsewhere cannot be brought to a window",
                    "train on audio");
  const auto samples_in = [&](double seconds) {
    return static_cast<std::size_t>(std::llround(seconds * sample.sample_rate));
  };
  const std::size_t window = samples_in(settings_.speech_length);
  std::vector<float>& speech = sample.speech;
  std::size_t silence = 0;
  if (mode_ == data::Mode::kTrain && speech.size() < window) {
    Random random({seed_, epoch, hash64(sample.uid), hash64("silence")});
    silence = random.below(
        std::min(window - speech.size(), samples_in(settings_.speech_init_silence)) + 1);
    speech.insert(speech.begin(), silence, 0.0F);
  }
  speech.resize(window);
  return std::llround(static_cast<double>(silence) /
                      static_cast<double>(samples_in(settings_.speech_resolution)));
}

S2tPreprocessor::Ids S2tPreprocessor::text_of(const data::Sample& sample, std::int64_t shift,
                                              bool with_times) const {
  Ids ids = tokenize_(with_marks_apart(sample.text, tokens_, cuts_at_blanks_));
  // Sentencepiece puts a word mark before the first mark of ours.
  if (!ids.empty() && tokens_.token(static_cast<int>(ids[0])) == "\u2581") ids.erase(ids.begin());
  const auto is_mark = [&](std::size_t i) {
    if (i >= ids.size()) return false;
    const std::string& token = tokens_.token(static_cast<int>(ids[i]));
    return token.starts_with('<') && token.ends_with('>') && token != speech::kUnknown;
  };
  const bool has_times = ids.size() > 2 && is_time(ids[2]);
  if (!is_mark(0) || !is_mark(1) || is_time(ids[0]) || is_time(ids[1]) ||
      !(has_times || (ids.size() > 2 && ids[2] == no_times_)))
    throw DataError(
        fmt::format("{}: the text begins with '{}', expected a language, a task, and a time or {}",
                    sample.uid, sample.text.substr(0, 40),
                    tokens_.token(static_cast<int>(no_times_))),
        fmt::format("write it like <eng><asr>{} good morning, with tokens of the list",
                    tokens_.token(static_cast<int>(no_times_))));
  if (!with_times && has_times) {
    std::erase_if(ids, [this](std::int64_t id) { return is_time(id); });
    ids.insert(ids.begin() + 2, no_times_);
  }
  for (std::int64_t& id : ids)
    if (is_time(id)) id = std::min(id + shift, last_time_);
  return ids;
}

S2tPreprocessor::Ids S2tPreprocessor::known(const std::string& text) const {
  Ids ids = tokenize_(text);
  if (std::find(ids.begin(), ids.end(), not_available_) != ids.end()) ids.clear();
  return ids;
}

void S2tPreprocessor::operator()(data::Sample& sample, std::uint64_t epoch) const {
  const bool is_training = mode_ == data::Mode::kTrain;
  const auto chance = [&](const char* step) {
    return Random({seed_, epoch, hash64(sample.uid), hash64(step)}).uniform();
  };
  if (needs_ctc_ && trim(sample.text_ctc).empty())
    throw DataError(sample.uid + ": no text_ctc, which the CTC of this model learns",
                    "give text_ctc beside text (<na> where it is not known), or set ctc_weight: 0");
  const std::int64_t shift = fit_speech(sample, epoch);
  sample.tokens =
      text_of(sample, shift, !is_training || chance("times") <= settings_.time_apply_prob);
  Ids before;
  if (!is_training || chance("previous") <= settings_.text_prev_apply_prob)
    if (!trim(sample.text_prev).empty()) before = known(sample.text_prev);
  if (!before.empty()) before.insert(before.begin(), previous_);
  sample.extra["text_prev"] = data::Array::from(before);
  sample.extra["text_ctc"] = data::Array::from(known(sample.text_ctc));
}

}  // namespace tutti::systems
