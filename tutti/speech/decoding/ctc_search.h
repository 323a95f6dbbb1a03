// CTC on the CPU over a plain matrix of log-probabilities: the best path, and the forced alignment
// that gives tokens their times (beam_search.h searches). No torch here: a worker's threads call these
// on the rows of one batch at the same time.
//
//   LogProbs x{data, num_frames, vocab_size};
//   ctc_greedy(x).tokens;
//   ctc_align(x, tokens)[0].begin_frame;
//
// All functions are pure and thread-safe. Frames are encoder frames; multiply by hop x subsampling
// / sample rate for seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::speech {

// A view of log-probabilities, frame by frame: row t begins at data + t * stride.
struct LogProbs {
  const float* data = nullptr;
  std::size_t num_frames = 0;
  std::size_t vocab_size = 0;
  std::size_t stride = 0;  // 0: vocab_size
  const float* frame(std::size_t t) const { return data + t * (stride == 0 ? vocab_size : stride); }
};

// Where a token was heard: frames [begin_frame, end_frame) and the mean log-probability there.
struct TokenTime {
  int token = 0;
  std::size_t begin_frame = 0;
  std::size_t end_frame = 0;
  float log_prob = 0;
};

struct CtcHypothesis {
  std::vector<int> tokens;
  std::vector<TokenTime> times;  // one per token
  double score = 0;              // of the best path
};

// Best token of each frame, repeats joined, blanks dropped.
CtcHypothesis ctc_greedy(const LogProbs& x, int blank = 0);
// The same of the best token of each frame and its log-probability, which a GPU finds itself: all log-probabilities
// are a thousand times as much to copy. REQUIRES: as many of one as of the other.
CtcHypothesis ctc_greedy(std::span<const std::int64_t> best, std::span<const float> log_probs,
                         int blank = 0);

// The best path that spells `tokens`. Empty when there are too few frames for them.
std::vector<TokenTime> ctc_align(const LogProbs& x, const std::vector<int>& tokens, int blank = 0);

}  // namespace tutti::speech
