#include "tutti/speech/ops/fused.h"

#include <torch/torch.h>

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/ops/gpu/fused.h"

namespace tutti::speech {

torch::Tensor as_factor(const torch::Tensor& x) {
  const auto type = gpu::fused_product_type(x);
  return type && x.scalar_type() != *type ? x.to(*type) : x;
}

torch::Tensor product(const torch::Tensor& x, const torch::Tensor& weight,
                      const torch::Tensor& bias) {
  if (gpu::can_fuse_product(x, weight)) return gpu::fused_product(x, weight, bias);
  if (gpu::can_multiply(x, weight, bias)) return gpu::multiplied(x, weight, bias);
  return torch::linear(x, weight, bias);
}

ThreeProducts products(const torch::Tensor& x, const Linear& first, const Linear& second,
                       const Linear& third) {
  if (gpu::can_fuse_product(x, first->weight) && first->bias.defined())
    return gpu::fused_products(x, *first, *second, *third);
  return {Linear(first)(x), Linear(second)(x), Linear(third)(x)};
}

torch::Tensor feed_forward(const torch::Tensor& x, Linear w_1, Linear w_2, Activation activation,
                           double rate) {
  if (gpu::can_fuse_product(x, w_1->weight) && gpu::fused_curve(activation))
    return gpu::fused_feed_forward(x, *w_1, *w_2, activation, rate);
  return w_2(apply_dropout(activate(w_1(x), activation), rate, rate > 0));
}

torch::Tensor norm_of(const torch::Tensor& x, LayerNorm norm, NormFor purpose) {
  return gpu::can_fuse_norm(x, *norm) ? gpu::fused_norm(x, *norm, purpose) : norm(x);
}

SumAndNorms add_and_norm(const torch::Tensor& x, const torch::Tensor& branch, double factor,
                         double rate, LayerNorm first, LayerNorm second, NormFor purpose) {
  if (gpu::can_fuse_norm(x, *first))
    return gpu::fused_add_and_norm(x, branch, factor, rate, *first,
                                   second.is_empty() ? nullptr : second.get(), purpose);
  SumAndNorms result;
  result.sum = torch::add(x, apply_dropout(branch, rate, rate > 0), factor);
  result.first = first(result.sum);
  if (!second.is_empty()) result.second = second(result.sum);
  return result;
}

SumAndNorms with_norms(const torch::Tensor& x, LayerNorm first, LayerNorm second) {
  if (gpu::can_fuse_norm(x, *first) && torch::GradMode::is_enabled())
    return gpu::fused_with_norms(x, *first, second.is_empty() ? nullptr : second.get());
  return {x, norm_of(x, first), second.is_empty() ? torch::Tensor() : norm_of(x, second)};
}

torch::Tensor add_dropped(const torch::Tensor& x, const torch::Tensor& branch, double factor,
                          double rate) {
  return torch::add(x, apply_dropout(branch, rate, rate > 0), factor);
}

PositionQueries position_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd,
                                 const torch::Tensor& v_Hd, double scale) {
  if (gpu::can_fuse_queries(q_BTD, u_Hd))
    return gpu::fused_position_queries(q_BTD, u_Hd, v_Hd, scale);
  const std::int64_t batch = q_BTD.size(0), frames = q_BTD.size(1), heads = u_Hd.size(0);
  const torch::Tensor q = q_BTD.view({batch, frames, heads, -1});
  return {q + u_Hd,
          ((q + v_Hd) * scale).permute({2, 0, 1, 3}).reshape({heads, batch * frames, q.size(3)})};
}

torch::Tensor gated_convolution(const torch::Tensor& h_BTC, LayerNorm norm, Conv1d conv,
                                const torch::Tensor& valid_BT, double rate,
                                const GateFinish& finish) {
  if (!finish && !conv->shape().causal && gpu::can_fuse_gate(h_BTC, *norm, *conv))
    return gpu::fused_gated_convolution(h_BTC, *norm, *conv, valid_BT, rate);
  const auto halves = torch::gelu(h_BTC).chunk(2, -1);
  const torch::Tensor gate =
      depthwise_conv(zero_padding(norm(halves[1]), valid_BT), conv->taps(), conv->bias);
  return apply_dropout(halves[0] * (finish ? finish(gate) : gate), rate, rate > 0);
}

torch::Tensor join_dropped(const torch::Tensor& a_BTC, const torch::Tensor& b_BTC,
                           const torch::Tensor& valid_BT, double rate) {
  if (gpu::can_fuse_join(a_BTC, b_BTC)) return gpu::fused_join(a_BTC, b_BTC, valid_BT, rate);
  const torch::Tensor a = apply_dropout(a_BTC, rate, rate > 0);
  const torch::Tensor b = apply_dropout(b_BTC, rate, rate > 0);
  return zero_padding(torch::cat({a, b}, -1), valid_BT);
}

}  // namespace tutti::speech
