#include "tutti/speech/decoding/ctc_search.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tutti::speech {
namespace {

constexpr double kLogZero = -std::numeric_limits<double>::infinity();
// Paths whose scores differ by less are tied, and the one that stays longer is taken: frames that are alike make ties,
// and noise of float32 must not decide them.
constexpr double kTie = 1e-4;

}  // namespace

CtcHypothesis ctc_greedy(const LogProbs& x, int blank) {
  std::vector<std::int64_t> best;
  std::vector<float> log_probs;
  for (std::size_t t = 0; t < x.num_frames; ++t) {
    const float* frame = x.frame(t);
    best.push_back(std::max_element(frame, frame + x.vocab_size) - frame);
    log_probs.push_back(frame[best.back()]);
  }
  return ctc_greedy(best, log_probs, blank);
}

CtcHypothesis ctc_greedy(std::span<const std::int64_t> best, std::span<const float> log_probs,
                         int blank) {
  CtcHypothesis out;
  int previous = blank;
  for (std::size_t t = 0; t < best.size(); ++t) {
    const int token = static_cast<int>(best[t]);
    out.score += log_probs[t];
    if (token != blank && token != previous) {
      out.tokens.push_back(token);
      out.times.push_back({token, t, t, 0});
    }
    if (token != blank) {
      TokenTime& time = out.times.back();
      time.end_frame = t + 1;
      time.log_prob += log_probs[t];
    }
    previous = token;
  }
  for (TokenTime& time : out.times)
    time.log_prob /= static_cast<float>(time.end_frame - time.begin_frame);
  return out;
}

std::vector<TokenTime> ctc_align(const LogProbs& x, const std::vector<int>& tokens, int blank) {
  if (tokens.empty() || x.num_frames == 0) return {};
  // States: blank, token 0, blank, token 1, ..., blank.
  const std::size_t states = 2 * tokens.size() + 1;
  const auto label = [&](std::size_t s) { return s % 2 == 0 ? blank : tokens[s / 2]; };
  std::vector<double> score(states, kLogZero), next(states);
  std::vector<std::uint8_t> step(x.num_frames * states, 0);  // how many states back we came from
  for (std::size_t t = 0; t < x.num_frames; ++t) {
    const float* frame = x.frame(t);
    for (std::size_t s = 0; s < states; ++s) {
      double best = t == 0 ? (s < 2 ? 0.0 : kLogZero) : score[s];
      std::uint8_t back = 0;
      if (t > 0 && s >= 1 && score[s - 1] > best + kTie) best = score[s - 1], back = 1;
      // A blank between two different tokens may be skipped.
      const bool skip = s >= 2 && s % 2 == 1 && tokens[s / 2] != tokens[s / 2 - 1];
      if (t > 0 && skip && score[s - 2] > best + kTie) best = score[s - 2], back = 2;
      next[s] = best + frame[label(s)];
      step[t * states + s] = back;
    }
    score.swap(next);
  }
  std::size_t s = score[states - 1] >= score[states - 2] - kTie ? states - 1 : states - 2;
  if (score[s] == kLogZero) return {};
  std::vector<TokenTime> out(tokens.size());
  std::vector<bool> seen(tokens.size(), false);
  for (std::size_t t = x.num_frames; t-- > 0;) {
    if (s % 2 == 1) {
      TokenTime& time = out[s / 2];
      if (!seen[s / 2]) time = {tokens[s / 2], t, t + 1, 0}, seen[s / 2] = true;
      time.begin_frame = t;
      time.log_prob += x.frame(t)[tokens[s / 2]];
    }
    s -= step[t * states + s];
  }
  for (TokenTime& time : out)
    time.log_prob /= static_cast<float>(time.end_frame - time.begin_frame);
  return out;
}

}  // namespace tutti::speech
