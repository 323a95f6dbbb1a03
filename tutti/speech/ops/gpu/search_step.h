// A step of a beam search by kernels of ours (kernels/search_step.h). Internal to speech/.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace tutti::speech::gpu {

struct TopTokens {
  torch::Tensor ids, values;  // (N, count) int64 and float64, best first
};
// Whether so many tokens of each row can be had.
bool can_take_best(const torch::Tensor& log_probs_NV, std::int64_t count);
// With `eos` there is one more column: <eos>, with value -inf if it is in another column too.
TopTokens take_best(const torch::Tensor& log_probs_NV, std::int64_t count,
                    std::optional<std::int64_t> eos);

// See kernels/search_step.h. Scores that are not asked for are undefined.
struct Continuations {
  torch::Tensor tokens_UWK, decoder_UWK, ctc_UWK;
  double decoder_weight = 0, ctc_weight = 0, penalty = 0;
};
struct StepRules {
  std::int64_t step = 0, eos = 0;
  torch::Tensor max_steps_U, min_steps_U;
  bool detects_end = false;
  torch::Tensor best_ended_U;
  const torch::Tensor* earlier_U[3] = {};  // null: too early to look
  double margin = 0;
};
struct Scores {
  torch::Tensor score, decoder, ctc;  // (U, W) float64
};
struct Chosen {
  Scores scores;
  torch::Tensor tokens, parents, rows, ended;  // (U, W)
  torch::Tensor best_now, best_ended;          // (U), with detects_end
};
bool can_choose(const Continuations& from);
Chosen choose(const Continuations& from, const Scores& before, const StepRules& rules);

}  // namespace tutti::speech::gpu
