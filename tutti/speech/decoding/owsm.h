// Prompts and time stamps of OWSM models (ESPnet's S2T task). Torch-free.
//
//   OwsmTokens owsm(tokens);                               // throws DataError when the list is not
//   OWSM's owsm.prompt({.language = "<eng>", .task = "<asr>"});   // {<sos>, <eng>, <asr>,
//   <notimestamps>} owsm.segments(ids, 29.0);                              // {{0.0, 3.2, {...}},
//   ...} and where to go on
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/speech/text/token_list.h"

namespace tutti::speech {

// Names and sizes that `preprocessor_conf` of a speech-to-text model gives.
struct OwsmSymbols {
  std::string no_times = "<notimestamps>";
  std::string first_time = "<0.00>", last_time = "<30.00>";
  std::string not_available = "<na>";
  std::string sos = "<sos>", eos = "<eos>", previous = "<sop>";
  double window = 30.0;      // seconds that the model hears at once
  double resolution = 0.02;  // seconds between two time tokens
};

struct OwsmPrompt {
  std::string language = "<eng>";
  std::string task = "<asr>";  // <asr>, or <st_xxx> to translate into xxx
  bool timestamps = false;
  // Tokens of the text before. An empty text is not the same as none: the model is told that there
  // was one.
  std::optional<std::vector<std::int64_t>> previous;
};

// How a search is started; languages and task are options of the recogniser.
struct OwsmCall {
  bool timestamps = false;
  std::optional<std::string> previous;  // the text before
};

struct LanguageGuess {
  std::string language;  // a token, e.g. <eng>
  double probability = 0;
};

struct TimedTokens {
  double begin = 0;  // seconds
  double end = 0;
  std::vector<std::int64_t> tokens;
};

struct OwsmSegments {
  std::vector<TimedTokens> utterances;
  double next = 0;  // where the next window begins, in seconds from the start of this one
};

// Without the marks in angle brackets: times, languages, <unk>.
std::string spoken_text(const TextCodec& codec, const std::vector<std::string>& tokens);
// Whether a token of an OWSM model is a language, task, time or the like.
bool is_owsm_mark(const std::string& token);

// Tokens of languages, by their names: <eng>, ...
std::vector<std::string> owsm_languages(const TokenList& tokens);
// The number of a language that a user gave under `key`, or of a task (`task_sym`). Throws ConfigError that names those
// the model knows.
int require_language(const TokenList& tokens, const std::string& language, const char* key);
int require_task(const TokenList& tokens, const std::string& task);

class OwsmTokens {
 public:
  // Keeps a reference: `tokens` must outlive this object. Throws DataError when a symbol is missing.
  explicit OwsmTokens(const TokenList& tokens, OwsmSymbols symbols = {});

  std::vector<std::int64_t> prompt(const OwsmPrompt& prompt) const;
  bool is_time(std::int64_t token) const { return token >= first_time_ && token <= last_time_; }
  double seconds(std::int64_t token) const {
    return static_cast<double>(token - first_time_) * symbols_.resolution;
  }
  double window() const { return symbols_.window; }
  std::int64_t no_times() const { return no_times_; }
  std::int64_t first_time() const { return first_time_; }
  std::int64_t last_time() const { return last_time_; }
  std::int64_t not_available() const { return tokens_.find(symbols_.not_available); }
  // Throws DataError for a token the list does not have.
  std::int64_t require(const std::string& token) const;
  // Utterances between pairs of time tokens. When the last one ends after `complete_before` seconds
  // and is not the only one, it may be cut off: it is left to the next window, which begins where
  // it did. Without any time token the whole window is one utterance.
  OwsmSegments segments(std::vector<std::int64_t> tokens, double complete_before = 29.0) const;

 private:
  const TokenList& tokens_;
  OwsmSymbols symbols_;
  std::int64_t no_times_ = 0, first_time_ = 0, last_time_ = 0;
};

}  // namespace tutti::speech
