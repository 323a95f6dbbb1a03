#include "tutti/speech/decoding/owsm.h"

#include <fmt/format.h>

#include "tutti/core/error.h"

namespace tutti::speech {

OwsmTokens::OwsmTokens(const TokenList& tokens) : tokens_(tokens) {
  first_time_ = require("<0.00>");
  last_time_ = require("<30.00>");
  if (last_time_ - first_time_ != static_cast<std::int64_t>(kWindow / kResolution + 0.5))
    throw DataError(
        fmt::format("token list: <0.00> is token {} and <30.00> is token {}, expected 1500 apart",
                    first_time_, last_time_));
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
  if (!prompt.previous.empty()) {
    out.push_back(require("<sop>"));
    out.insert(out.end(), prompt.previous.begin(), prompt.previous.end());
  }
  out.push_back(tokens_.find("<sos>") >= 0 ? require("<sos>") : require(std::string(kSosEos)));
  out.push_back(require(prompt.language));
  out.push_back(require(prompt.task));
  if (!prompt.timestamps) out.push_back(require("<notimestamps>"));
  return out;
}

OwsmSegments OwsmTokens::segments(std::vector<std::int64_t> tokens, double complete_before) const {
  std::vector<std::size_t> times;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (is_time(tokens[i])) times.push_back(i);
  OwsmSegments out;
  if (times.empty()) {
    if (!tokens.empty()) out.utterances.push_back({0, kWindow, std::move(tokens)});
    out.next = kWindow;
    return out;
  }
  if (times.size() == 1) {  // a start without an end: to the end of the window
    tokens.push_back(last_time_);
    times.push_back(tokens.size() - 1);
  }
  if (times.size() % 2 == 1) {  // the last utterance has only begun
    out.next = seconds(tokens[times.back()]);
    times.pop_back();
  } else if (times.size() > 2 && seconds(tokens[times.back()]) > complete_before) {
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
  if (out.next <= 0) out.next = kWindow;
  return out;
}

}  // namespace tutti::speech
