// Without kernels nothing can be fused.
#ifndef TUTTI_WITH_CUDA_KERNELS
#include "tutti/core/error.h"
#include "tutti/speech/ops/gpu/fused.h"

namespace tutti::speech::gpu {

namespace {

[[noreturn]] void no_kernels() { throw InternalError("this build has no GPU kernels"); }

}  // namespace

std::optional<torch::ScalarType> fused_product_type(const torch::Tensor&) { return std::nullopt; }
bool can_multiply(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  return false;
}
torch::Tensor multiplied(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  no_kernels();
}
bool can_fuse_product(const torch::Tensor&, const torch::Tensor&) { return false; }
torch::Tensor fused_product(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  no_kernels();
}
ThreeProducts fused_products(const torch::Tensor&, const LinearImpl&, const LinearImpl&,
                             const LinearImpl&) {
  no_kernels();
}
bool can_fuse_dropout(const torch::Tensor&) { return false; }
torch::Tensor fused_dropout(const torch::Tensor&, double) { no_kernels(); }
bool fused_curve(Activation) { return false; }
torch::Tensor fused_feed_forward(const torch::Tensor&, const LinearImpl&, const LinearImpl&,
                                 Activation, double) {
  no_kernels();
}
bool can_fuse_norm(const torch::Tensor&, const LayerNormImpl&) { return false; }
torch::Tensor fused_norm(const torch::Tensor&, const LayerNormImpl&, NormFor) { no_kernels(); }
SumAndNorms fused_with_norms(const torch::Tensor&, const LayerNormImpl&, const LayerNormImpl*) {
  no_kernels();
}
SumAndNorms fused_add_and_norm(const torch::Tensor&, const torch::Tensor&, double, double,
                               const LayerNormImpl&, const LayerNormImpl*, NormFor) {
  no_kernels();
}
bool can_fuse_queries(const torch::Tensor&, const torch::Tensor&) { return false; }
PositionQueries fused_position_queries(const torch::Tensor&, const torch::Tensor&,
                                       const torch::Tensor&, double) {
  no_kernels();
}
bool can_fuse_gate(const torch::Tensor&, const LayerNormImpl&, const Conv1dImpl&) { return false; }
torch::Tensor fused_gated_convolution(const torch::Tensor&, const LayerNormImpl&, const Conv1dImpl&,
                                      const torch::Tensor&, double) {
  no_kernels();
}
bool can_fuse_join(const torch::Tensor&, const torch::Tensor&) { return false; }
torch::Tensor fused_join(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&, double) {
  no_kernels();
}

}  // namespace tutti::speech::gpu
#endif
