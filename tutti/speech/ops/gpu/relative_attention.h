// Attention with relative positions in kernels of ours (kernels/relative_attention.h).
// Internal to speech/.
#pragma once

#include <torch/types.h>

#include "tutti/speech/ops/fused.h"

namespace tutti::speech::gpu {

// Whether there are kernels for these: bf16, heads of 32 or 64, a GPU.
bool can_fuse_attention(const torch::Tensor& q_BTD, const torch::Tensor& table_ND,
                        const torch::Tensor& u_Hd);

// Attention of all frames to those that exist (valid_BT; undefined: all), (B, T, D). table_ND are
// positions T-1, T-2, .., at least 2T-1 of them, times their weight. u and v are added to queries that
// meet keys and positions. `rate` is that of dropout of attention weights. REQUIRES:
// can_fuse_attention().
torch::Tensor fused_relative_attention(const ThreeProducts& qkv, const torch::Tensor& u_Hd,
                                       const torch::Tensor& v_Hd, const torch::Tensor& table_ND,
                                       const torch::Tensor& valid_BT, double rate);

}  // namespace tutti::speech::gpu
