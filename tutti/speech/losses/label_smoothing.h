// Cross-entropy against smoothed targets, as ESPnet's attention loss: the Kullback-Leibler
// divergence from (1 - smoothing at the target, smoothing / (V - 1) elsewhere).
#pragma once

#include <torch/types.h>

#include "tutti/speech/models/lengths.h"

namespace tutti::speech {

struct AttentionLoss {
  torch::Tensor loss;      // 0-dim
  torch::Tensor accuracy;  // 0-dim, detached: share of tokens whose argmax is right
};

// logits (B, L, V), targets (B, L) int64; only the first lengths[b] positions count, without the
// first begins[b] of them where `begins` is given (a prompt is read, not learnt). The sum over
// tokens is divided by B, or by the number of tokens if `normalize_length`. The smoothed
// distribution itself is never made: two reductions over log-probabilities are enough.
AttentionLoss label_smoothing_loss(const torch::Tensor& logits_BLV, const torch::Tensor& targets_BL,
                                   const Lengths& lengths, double smoothing, bool normalize_length,
                                   const Lengths& begins = {});

}  // namespace tutti::speech
