#include "tutti/speech/decoding/owsm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::speech {

std::string spoken_text(const TextCodec& codec, const std::vector<std::string>& tokens) {
  std::vector<std::string> spoken;
  for (const std::string& token : tokens)
    if (!is_owsm_mark(token)) spoken.push_back(token);
  return codec.tokenizer().text(spoken);
}

bool is_owsm_mark(const std::string& token) {
  return token.starts_with('<') && token.ends_with('>');
}

OwsmTokens::OwsmTokens(const TokenList& tokens, OwsmSymbols symbols)
    : tokens_(tokens), symbols_(std::move(symbols)) {
  no_times_ = require(symbols_.no_times);
  first_time_ = require(symbols_.first_time);
  last_time_ = require(symbols_.last_time);
  const std::int64_t steps = std::llround(symbols_.window / symbols_.resolution);
  if (last_time_ - first_time_ != steps)
    throw DataError(fmt::format("token list: {} is token {} and {} is token {}, expected {} apart",
                                symbols_.first_time, first_time_, symbols_.last_time, last_time_,
                                steps));
}

// <xx> or <xxx>, but for the three tasks and marks of that length.
bool OwsmTokens::is_language(std::int64_t token) const {
  const std::string& name = tokens_.token(static_cast<int>(token));
  if ((name.size() != 4 && name.size() != 5) || name.front() != '<' || name.back() != '>')
    return false;
  for (const char* other : {"<na>", "<asr>", "<unk>", "<sos>", "<eos>", "<sop>"})
    if (name == other) return false;
  return std::all_of(name.begin() + 1, name.end() - 1, [](char c) { return c >= 'a' && c <= 'z'; });
}

std::vector<std::string> OwsmTokens::languages() const {
  std::vector<std::string> out;
  for (int id = 0; id < tokens_.size(); ++id)
    if (is_language(id)) out.push_back(tokens_.token(id));
  return out;
}

std::int64_t OwsmTokens::require(const std::string& token) const {
  const int id = tokens_.find(token);
  if (id < 0)
    throw DataError(fmt::format("token list: no token {}", token),
                    "give the token list of an OWSM model, and a language and task it knows");
  return id;
}

std::int64_t OwsmTokens::require_language(const std::string& language, const char* key) const {
  // Without its marks it can be a piece of a word.
  if (const int id = tokens_.find(language); id >= 0 && is_owsm_mark(language)) return id;
  const std::vector<std::string> known = languages();
  const std::string marked = "<" + language + ">";
  const std::string meant = tokens_.find(marked) >= 0 ? marked : closest_match(language, known);
  throw ConfigError(fmt::format("{}: got {}, expected a language of the model: {}", key, language,
                                join(known, ", ")),
                    meant.empty() ? "" : "did you mean " + meant + "?");
}

std::vector<std::int64_t> OwsmTokens::prompt(const OwsmPrompt& prompt) const {
  std::vector<std::int64_t> out;
  const bool is_known =
      prompt.previous && std::find(prompt.previous->begin(), prompt.previous->end(),
                                   not_available()) == prompt.previous->end();
  if (is_known) {
    out.push_back(require(symbols_.previous));
    out.insert(out.end(), prompt.previous->begin(), prompt.previous->end());
  }
  out.push_back(require(symbols_.sos));
  out.push_back(require(prompt.language));
  out.push_back(require(prompt.task));
  if (!prompt.timestamps) out.push_back(no_times_);
  return out;
}

OwsmSegments OwsmTokens::segments(std::vector<std::int64_t> tokens, double complete_before) const {
  std::vector<std::size_t> times;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (is_time(tokens[i])) times.push_back(i);
  OwsmSegments out;
  if (times.empty()) {
    if (!tokens.empty()) out.utterances.push_back({0, window(), std::move(tokens)});
    out.next = window();
    return out;
  }
  if (times.size() == 1) {  // a start without an end: to the end of the window
    tokens.push_back(last_time_);
    times.push_back(tokens.size() - 1);
  }
  if (times.size() % 2 == 1) {  // the last utterance has only begun
    out.next = seconds(tokens[times.back()]);
    times.pop_back();
  } else if (times.size() > 2 && tokens[times.back()] - first_time_ >
                                     std::llround(complete_before / symbols_.resolution)) {
    out.next = seconds(tokens[times[times.size() - 2]]);
    times.resize(times.size() - 2);
  } else {
    out.next = seconds(tokens[times.back()]);
  }
  for (std::size_t i = 0; i + 1 < times.size(); i += 2) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(times[i]) + 1;
    const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(times[i + 1]);
    out.utterances.push_back(
        {seconds(tokens[times[i]]), seconds(tokens[times[i + 1]]), {first, last}});
  }
  // A model that says "nothing until 0.00" would never get on.
  if (out.next <= 0) out.next = window();
  return out;
}

}  // namespace tutti::speech
