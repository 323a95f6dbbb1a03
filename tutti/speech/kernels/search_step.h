// What a beam search does in a step beside its models: two kernels in place of some thirty small ones,
// whose launching would be its time. Conventions of kernels.h. What is not a number is chosen last.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

constexpr std::int64_t kMostBest = 64;          // tokens of a row, hypotheses of an utterance
constexpr std::int64_t kMostCandidates = 5120;  // of an utterance: they lie in shared memory

// The best tokens of each row of log_probs (rows, vocab): best first, of equal ones the lower id. ids
// and values are (rows, count). With eos_id >= 0 they are (rows, count + 1): <eos> is the last,
// whether it is good or not; its value is -inf if it was among the best already.
struct BestTokens {
  std::int64_t rows = 0, vocab = 0;
  std::int64_t count = 0;  // at most kMostBest and vocab
  std::int64_t eos_id = -1;
  const float* log_probs = nullptr;
  std::int64_t* ids = nullptr;
  double* values = nullptr;
};
void best_tokens(const BestTokens& call, Stream stream);

// The best `beam` of the continuations of an utterance's hypotheses, and what becomes of them. U
// utterances, W = beam hypotheses, K = width candidates for each; W * K is at most kMostCandidates.
struct KeepBest {
  std::int64_t utterances = 0, beam = 0, width = 0;
  std::int64_t step = 0;  // the number of this one
  std::int64_t eos_id = 0;
  double decoder_weight = 0, ctc_weight = 0, penalty = 0;

  const std::int64_t* candidates = nullptr;         // (U, W, K)
  const double *decoder = nullptr, *ctc = nullptr;  // (U, W, K): their scores; null: not asked
  const double* score = nullptr;                    // (U, W): before this step; -inf: dead
  const double *decoder_score = nullptr, *ctc_score = nullptr;  // (U, W), with decoder and ctc
  // (U): in step max_steps - 1 every hypothesis ends; what ends before min_steps does not count.
  const std::int64_t *max_steps = nullptr, *min_steps = nullptr;

  // (U, W): token, hypothesis it continues, and that one's row among all.
  std::int64_t *tokens = nullptr, *parents = nullptr, *rows = nullptr;
  double* ended = nullptr;      // (U, W): the score of what ended and counts, or -inf
  double* new_score = nullptr;  // (U, W): -inf once it ended
  double *new_decoder_score = nullptr, *new_ctc_score = nullptr;  // (U, W)

  // (U) each: the best that ended up to the step before, in this step and up to it. Null: without.
  const double* best_ended = nullptr;
  double *best_now = nullptr, *new_best_ended = nullptr;
  // (U) each, or null: an utterance is over when something ended in each of these steps, and the best
  // of each lies below the best of all by more than -margin.
  const double* earlier[3] = {};
  double margin = 0;
};
void keep_best(const KeepBest& call, Stream stream);

}  // namespace tutti::speech::cuda
