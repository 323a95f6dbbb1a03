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

namespace {

// <xx> or <xxx>, but for the three tasks and marks of that length.
bool is_language(const std::string& token) {
  if ((token.size() != 4 && token.size() != 5) || !is_owsm_mark(token)) return false;
  for (const char* other : {"<na>", "<asr>", "<unk>", "<sos>", "<eos>", "<sop>"})
    if (token == other) return false;
  return std::all_of(token.begin() + 1, token.end() - 1,
                     [](char c) { return c >= 'a' && c <= 'z'; });
}

bool is_task(const std::string& token) {
  return token == "<asr>" || (token.starts_with("<st_") && is_owsm_mark(token));
}

std::vector<std::string> select(const TokenList& tokens, bool (*is_wanted)(const std::string&)) {
  std::vector<std::string> out;
  for (const std::string& token : tokens.tokens())
    if (is_wanted(token)) out.push_back(token);
  return out;
}

// All, or those that begin like the word: a model may know 150 languages.
std::string named(std::vector<std::string> known, const std::string& word) {
  constexpr std::size_t kShown = 12;
  const std::size_t all = known.size();
  const auto in_common = [&](const std::string& token) {
    return std::mismatch(token.begin(), token.end(), word.begin(), word.end()).first -
           token.begin();
  };
  if (all > kShown) {
    std::stable_sort(known.begin(), known.end(),
                     [&](const auto& a, const auto& b) { return in_common(a) > in_common(b); });
    known.resize(kShown);
  }
  return join(known, ", ") +
         (all > kShown ? fmt::format(" or one of {} others", all - kShown) : "");
}

int require_mark(const TokenList& tokens, const std::string& token, const char* key,
                 const char* what, const std::vector<std::string>& known) {
  // Without its marks it can be a piece of a word.
  if (const int id = tokens.find(token); id >= 0 && is_owsm_mark(token)) return id;
  const std::string marked = is_owsm_mark(token) ? token : "<" + token + ">";
  const std::string meant = tokens.find(marked) >= 0 ? marked : closest_match(marked, known);
  throw ConfigError(fmt::format("{}: got {}, expected a {} of the model: {}", key, token, what,
                                named(known, marked)),
                    meant.empty() ? "" : "did you mean " + meant + "?");
}

}  // namespace

std::vector<std::string> owsm_languages(const TokenList& tokens) {
  return select(tokens, is_language);
}

int require_language(const TokenList& tokens, const std::string& language, const char* key) {
  return require_mark(tokens, language, key, "language", owsm_languages(tokens));
}

int require_task(const TokenList& tokens, const std::string& task) {
  return require_mark(tokens, task, "task_sym", "task", select(tokens, is_task));
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

std::int64_t OwsmTokens::require(const std::string& token) const {
  const int id = tokens_.find(token);
  if (id < 0)
    throw DataError(fmt::format("token list: no token {}", token),
                    "give the token list of an OWSM model, and a language and task it knows");
  return id;
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
