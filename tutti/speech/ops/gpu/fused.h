// The GPU side of ops/fused.h; without kernels (absent.cpp) nothing can be fused.
// Internal to speech/.
#pragma once

#include <optional>

#include "tutti/speech/ops/fused.h"

namespace tutti::speech::gpu {

// Autocast's type where it is on for GPUs and x lies on one.
std::optional<torch::ScalarType> fused_product_type(const torch::Tensor& x);

// Half precision outside of training, with little for the host to do.
bool can_multiply(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias);
torch::Tensor multiplied(const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias);

bool can_fuse_product(const torch::Tensor& x, const torch::Tensor& weight);
torch::Tensor fused_product(const torch::Tensor& x, const torch::Tensor& weight,
                            const torch::Tensor& bias);
ThreeProducts fused_products(const torch::Tensor& x, const LinearImpl& first,
                             const LinearImpl& second, const LinearImpl& third);

bool can_fuse_dropout(const torch::Tensor& x);
torch::Tensor fused_dropout(const torch::Tensor& x, double rate);

bool fused_curve(Activation activation);
torch::Tensor fused_feed_forward(const torch::Tensor& x, const LinearImpl& w_1,
                                 const LinearImpl& w_2, Activation activation, double rate);

bool can_fuse_norm(const torch::Tensor& x, const LayerNormImpl& norm);
torch::Tensor fused_norm(const torch::Tensor& x, const LayerNormImpl& norm, NormFor purpose);
SumAndNorms fused_with_norms(const torch::Tensor& x, const LayerNormImpl& first,
                             const LayerNormImpl* second);
SumAndNorms fused_add_and_norm(const torch::Tensor& x, const torch::Tensor& branch, double factor,
                               double rate, const LayerNormImpl& first, const LayerNormImpl* second,
                               NormFor purpose);

bool can_fuse_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd);
PositionQueries fused_position_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd,
                                       const torch::Tensor& v_Hd, double scale);

bool can_fuse_gate(const torch::Tensor& h_BTC, const LayerNormImpl& norm, const Conv1dImpl& conv);
torch::Tensor fused_gated_convolution(const torch::Tensor& h_BTC, const LayerNormImpl& norm,
                                      const Conv1dImpl& conv, const torch::Tensor& valid_BT,
                                      double rate);

bool can_fuse_join(const torch::Tensor& a_BTC, const torch::Tensor& b_BTC);
torch::Tensor fused_join(const torch::Tensor& a_BTC, const torch::Tensor& b_BTC,
                         const torch::Tensor& valid_BT, double rate);

}  // namespace tutti::speech::gpu
