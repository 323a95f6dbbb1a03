// What layers do around matrix products, in few passes over memory.
//
// On a GPU each of these is one kernel forward and one or two backward (kernels/fused.h), and under
// autocast results come in the type the next product wants. Elsewhere, and for types and sizes the
// kernels do not know, they are torch's operations; the meaning is the same. Dropout rates are
// those to apply now: 0 outside training.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tutti/speech/models/modules.h"

namespace tutti::speech {

// x in the type of matrix products: autocast's on a GPU, else unchanged.
torch::Tensor as_factor(const torch::Tensor& x);

// x weight' + bias; bias may be undefined.
torch::Tensor product(const torch::Tensor& x, const torch::Tensor& weight,
                      const torch::Tensor& bias);
// Three products with the same x, in one node of the graph.
struct ThreeProducts {
  torch::Tensor first, second, third;
};
ThreeProducts products(const torch::Tensor& x, const Linear& first, const Linear& second,
                       const Linear& third);

// w_2(dropout(activation(w_1(x)))).
torch::Tensor feed_forward(const torch::Tensor& x, Linear w_1, Linear w_2, Activation activation,
                           double rate);

// What a norm's result is for decides its type.
enum class NormFor { kProduct, kSum };
torch::Tensor norm_of(const torch::Tensor& x, LayerNorm norm, NormFor purpose = NormFor::kProduct);

// sum = x + factor * dropout(branch), and its norms; `second` may be empty.
struct SumAndNorms {
  torch::Tensor sum, first, second;
};
SumAndNorms add_and_norm(const torch::Tensor& x, const torch::Tensor& branch, double factor,
                         double rate, LayerNorm first, LayerNorm second = nullptr,
                         NormFor purpose = NormFor::kProduct);
// The same without a branch: `sum` is x, for the sum that a layer adds its result to. To take it from
// here saves a pass over memory: the norms' gradients are added to its own on the way.
SumAndNorms with_norms(const torch::Tensor& x, LayerNorm first, LayerNorm second = nullptr);
torch::Tensor add_dropped(const torch::Tensor& x, const torch::Tensor& branch, double factor,
                          double rate);

// q + u, (B, T, H, d), and (q + v) * scale, (H, B * T, d); q is (B, T, H * d), u and v (H, d).
struct PositionQueries {
  torch::Tensor with_u_BTHd, with_v_HMd;
};
PositionQueries position_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd,
                                 const torch::Tensor& v_Hd, double scale);

// dropout(gelu(h1) * finish(conv(norm(gelu(h2))))), where h1 and h2 are the halves of h; frames
// that valid_BT (or undefined) rules out are 0 before the convolution. Without `finish` the gate is
// the convolution's output itself.
using GateFinish = std::function<torch::Tensor(const torch::Tensor&)>;
torch::Tensor gated_convolution(const torch::Tensor& h_BTC, LayerNorm norm, Conv1d conv,
                                const torch::Tensor& valid_BT, double rate,
                                const GateFinish& finish = {});

// dropout(a) and dropout(b) side by side, 0 in frames that valid_BT (or undefined) rules out.
torch::Tensor join_dropped(const torch::Tensor& a_BTC, const torch::Tensor& b_BTC,
                           const torch::Tensor& valid_BT, double rate);

// Copies of a model's parameters in another type, which operations find while a Scope lives; without
// them each casts its own, a kernel every time. In training: of all weights of linear layers in
// autocast's type, made by a few kernels at the start of a step.
class WeightCasts {
 public:
  class Scope {
   public:
    explicit Scope(const WeightCasts* casts);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const WeightCasts* before_;
  };
  // Does nothing without CUDA autocast, or where some weights are elsewhere now (fsdp).
  [[nodiscard]] std::unique_ptr<Scope> refresh(const torch::nn::Module& model);
  // Of a model in half precision that only infers: float32 copies of what kernels read as floats (all but
  // the weights of linear layers), made once; they are found while a Scope lives. REQUIRES: parameters
  // stay as they are, or this is said again.
  void keep_floats(const torch::nn::Module& model);
  // The copy of `weight`, or undefined.
  torch::Tensor find(const torch::Tensor& weight, torch::ScalarType type) const;

 private:
  std::vector<torch::Tensor> weights_, casts_;
  std::unordered_map<const void*, std::size_t> places_;
};

}  // namespace tutti::speech
