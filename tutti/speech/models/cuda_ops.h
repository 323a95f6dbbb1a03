// The kernels of tutti/speech/cuda as torch operations with gradients.
#pragma once

#include <torch/types.h>

namespace tutti::speech {

// Whether `x` lies where these run, is of a type they know, and nobody asked for deterministic
// sums.
bool has_cuda_ops(const torch::Tensor& x);

// See modules.h. Under autocast the result is of autocast's type, whatever x is.
torch::Tensor cuda_depthwise_conv(const torch::Tensor& x_BTC, const torch::Tensor& weight_C1K,
                                  const torch::Tensor& bias_C);

// Scores against relative positions T-1, T-2, .. (H, B, T, N >= 2T-1) to scores against keys (B, H,
// T, T), with key_bias (B, 1, 1, T; may be undefined) added. Rows of the result are aligned as
// attention kernels like them.
torch::Tensor cuda_relative_shift(const torch::Tensor& scores_HBTN, const torch::Tensor& key_bias);

}  // namespace tutti::speech
