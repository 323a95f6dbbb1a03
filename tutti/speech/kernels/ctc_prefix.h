// CTC prefix scores of the hypotheses of a search: a kernel for the scores of candidates, one for the
// step to new hypotheses. Conventions of kernels.h; log-probabilities are added up as doubles.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

constexpr double kCtcLogZero = -1e10;  // of what is impossible

// Where the hypotheses of a search stand: U utterances of W hypotheses each. Of paths (U, W, T) only
// what lies up to an utterance's last frame is read.
struct CtcPrefixes {
  std::int64_t utterances = 0, beam = 0, frames = 0, vocab = 0;
  const float* log_probs = nullptr;    // (U, T, V)
  const std::int64_t* ends = nullptr;  // (U): the last frame, in 0 .. T-1
  const double* either = nullptr;      // (U, W, T): of all paths of the hypothesis up to a frame
  const double* blank = nullptr;       // (U, W, T): of those whose last label is blank
  const std::int64_t* last_token = nullptr;  // (U, W)
  std::int64_t blank_id = 0, eos_id = 0;
  // The next token may not lie before this frame; in frame 0 only if nothing was said so far.
  std::int64_t first_frame = 0;
};

// scores (U, W, count): log-probability of all label sequences that begin with a hypothesis and a
// candidate. <eos> scores the hypothesis as a whole text, blank is impossible unless it is <eos>; a
// token that repeats the last one follows only paths that end in blank.
void ctc_prefix_scores(const CtcPrefixes& prefixes, const std::int64_t* candidates,
                       std::int64_t count, double* scores, Stream stream);

// Hypothesis (u, w) becomes (u, parents[u, w]) and tokens[u, w]; either and blank (U, W, T) are others
// than those of `prefixes`, and get nothing past an utterance's end.
void ctc_prefix_advance(const CtcPrefixes& prefixes, const std::int64_t* parents,
                        const std::int64_t* tokens, double* either, double* blank, Stream stream);

}  // namespace tutti::speech::cuda
