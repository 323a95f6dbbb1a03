// The hypotheses of a batched beam search: which of their continuations a step keeps, and when they
// end.
//
//   Beams beams({.beam = 5, .ctc_weight = 0.3, .eos = eos}, limits, device);
//   KeptStep kept = beams.keep(candidates, i);    // step i
//
// Every utterance has `beam` rows; a row whose hypothesis ended is dead (score -inf). On a GPU a step
// is one kernel (ops/gpu/search_step.h), as far as no language model has a say. Not thread-safe.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace tutti::speech {

namespace gpu {
struct Continuations;
}

inline constexpr double kDead = -std::numeric_limits<double>::infinity();

// In tokens, <eos> included, by utterance: at most, and at least for a hypothesis that counts.
struct LengthLimits {
  std::vector<std::int64_t> max, min;
};

struct Candidates {
  torch::Tensor tokens;   // (U, W, K)
  torch::Tensor decoder;  // (U, W, K) float64, undefined without a decoder
  torch::Tensor lm;       // (U, W, K) float64, undefined without a language model
  torch::Tensor ctc;      // (U, W, K) float64, undefined without CTC
  torch::Tensor bias;     // (U, W, K) 0 or -inf, or undefined
};

// (U, W) each.
struct KeptStep {
  torch::Tensor tokens, parents;      // int64; parents: among the rows of the utterance
  torch::Tensor rows;                 // int64: parents among all rows, flat, if a scorer may ask
  torch::Tensor ended, decoder, ctc;  // float64; ended: score or -inf; the others: unweighted parts
};

class Beams {
 public:
  struct Settings {
    std::int64_t beam = 1;
    double ctc_weight = 0, lm_weight = 0, penalty = 0;
    bool detects_end = false;  // by what ended, as ESPnet does
    std::int64_t prompt_length = 1;
    std::int64_t eos = 0;
  };
  Beams(Settings settings, LengthLimits limits, torch::Device device);

  // REQUIRES: steps 0, 1, 2 ... in turn.
  KeptStep keep(const Candidates& candidates, std::int64_t step);
  std::int64_t num_utterances() const { return score_.size(0); }
  torch::Tensor alive() const { return (score_ > kDead).any(1); }  // (U) bool
  // Keeps these utterances only; `index` is the same in device memory.
  void select_utterances(const std::vector<std::int64_t>& keep, const torch::Tensor& index);

 private:
  KeptStep keep_at_once(const gpu::Continuations& from, std::int64_t step);
  KeptStep keep_in_parts(const Candidates& c, std::int64_t step);
  // The first of the steps whose ends decide now, or -1.
  std::int64_t first_decisive(std::int64_t step) const;
  torch::Tensor end_detected(std::int64_t step) const;

  Settings settings_;
  LengthLimits limits_;                              // of the utterances that are left
  torch::Tensor max_steps_, min_steps_;              // (U, 1): the same
  torch::Tensor score_, decoder_score_, ctc_score_;  // (U, W)
  torch::Tensor best_ended_;                         // (U)
  std::vector<torch::Tensor> best_by_step_;          // (U) each: the best that ended in that step
  torch::Tensor dead_;                               // (U, W) -inf
  torch::Tensor only_parents_;                       // (U, 1) zeros, where there is no choice
};

}  // namespace tutti::speech
