// Prompts and time stamps of OWSM models (ESPnet's S2T task). Torch-free.
//
//   OwsmTokens owsm(tokens);                               // throws DataError when the list is not
//   OWSM's owsm.prompt({.language = "<eng>", .task = "<asr>"});   // {<sos>, <eng>, <asr>,
//   <notimestamps>} owsm.segments(ids, 29.0);                              // {{0.0, 3.2, {...}},
//   ...} and where to go on
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/speech/text/token_list.h"

namespace tutti::speech {

struct OwsmPrompt {
  std::string language = "<eng>";
  std::string task = "<asr>";  // <asr>, or <st_xxx> to translate into xxx
  bool timestamps = false;
  std::vector<std::int64_t> previous;  // tokens of the text before, or empty
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

class OwsmTokens {
 public:
  static constexpr double kResolution = 0.02;  // seconds between two time tokens
  static constexpr double kWindow = 30.0;      // seconds

  // Keeps a reference: `tokens` must outlive this object.
  explicit OwsmTokens(const TokenList& tokens);

  std::vector<std::int64_t> prompt(const OwsmPrompt& prompt) const;
  bool is_time(std::int64_t token) const { return token >= first_time_ && token <= last_time_; }
  double seconds(std::int64_t token) const {
    return static_cast<double>(token - first_time_) * kResolution;
  }
  // Utterances between pairs of time tokens. When the last one ends after `complete_before` seconds
  // and is not the only one, it may be cut off: it is left to the next window, which begins where
  // it did. Without any time token the whole window is one utterance.
  OwsmSegments segments(std::vector<std::int64_t> tokens, double complete_before = 29.0) const;

 private:
  std::int64_t require(const std::string& token) const;
  const TokenList& tokens_;
  std::int64_t first_time_ = 0, last_time_ = 0;
};

}  // namespace tutti::speech
