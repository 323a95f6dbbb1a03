// Kernels (speech/kernels) as torch operations with gradients.
#pragma once

#include <torch/types.h>

namespace tutti::speech {

// Whether `x` lies where these run, is of a type they know, and nobody asked for deterministic
// sums.
bool has_cuda_ops(const torch::Tensor& x);

// See modules.h. Under autocast the result is of autocast's type, whatever x is.
torch::Tensor cuda_depthwise_conv(const torch::Tensor& x_BTC, const torch::Tensor& weight_C1K,
                                  const torch::Tensor& bias_C, bool residual = false);

// Scores against relative positions T-1, T-2, .. (H, B, T, N >= 2T-1) to scores against keys (B, H,
// T, T), with key_bias (B, 1, 1, T; may be undefined) added. Rows of the result are aligned as
// attention kernels like them.
torch::Tensor cuda_relative_shift(const torch::Tensor& scores_HBTN, const torch::Tensor& key_bias);

// Whether cuda_attend_past knows heads of this size.
bool can_attend_past(const torch::Tensor& cache_NHCd);
// Self-attention of one new token per hypothesis, q, k, v (N, H, 1, dk), over what its ancestors
// said: k and v are entered into the caches (N, H, capacity, dk) at place position (1, int64), the
// row into ancestors (N, capacity; int32). No gradients.
torch::Tensor cuda_attend_past(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& k_cache,
                               const torch::Tensor& v_cache, const torch::Tensor& ancestors,
                               const torch::Tensor& position);

}  // namespace tutti::speech
