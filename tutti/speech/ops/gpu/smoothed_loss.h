// The attention loss by kernels of ours (kernels/smoothed_loss.h). Internal to speech/.
#pragma once

#include <torch/types.h>

#include "tutti/speech/losses/label_smoothing.h"

namespace tutti::speech::gpu {

bool can_fuse_smoothed_loss(const torch::Tensor& logits_BLV);

// As label_smoothing_loss, with everything in device memory: lengths_B and begins_B (int64, the second
// may be undefined), and what the sum over tokens is multiplied with (one float).
AttentionLoss fused_smoothed_loss(const torch::Tensor& logits_BLV, const torch::Tensor& targets_BL,
                                  const torch::Tensor& lengths_B, const torch::Tensor& begins_B,
                                  const torch::Tensor& scale, double smoothing);

}  // namespace tutti::speech::gpu
