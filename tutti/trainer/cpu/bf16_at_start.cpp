// bf16 on a CPU: products are summed in float32 and rounded once, on every processor. oneDNN does so. What libtorch does not give to
// oneDNN, it computes itself and sums in bf16, with up to ten times the error: 1.13 all products on a processor without AVX-512 and
// small ones anywhere; 2.x still a convolution's gradients without AVX-512. Here these are computed with float32 copies. They are
// kernels of torch's CPU backend, so autograd and autocast above them stay as they are.
// As tutti/core/tiles_at_start.cpp: programs with torch take it out of the library (cmake/TuttiTorch.cmake).
#include <ATen/CPUFunctions.h>
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "tutti/core/tiles.h"
#include "tutti/trainer/torch_version.h"

namespace tutti::trainer {
namespace {

using at::Scalar;
using at::Tensor;
#if TUTTI_TORCH_AT_LEAST(2, 6)
using MaybeTensor = std::optional<Tensor>;
#else
using MaybeTensor = c10::optional<Tensor>;
#endif

bool onednn_takes_bf16() {
  static const bool kCan = onednn_does_bf16();
  return kCan && at::globalContext().userEnabledMkldnn();
}

bool are_bf16(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16;
}

Tensor wide(const Tensor& x) { return x.to(at::kFloat); }
Tensor narrow(const Tensor& x) { return x.defined() ? x.to(at::kBFloat16) : x; }

// libtorch 1.13 also gives transposed convolutions to oneDNN, which then refuses them.
bool is_our_convolution(const Tensor& input, const Tensor& weight, bool transposed) {
  return are_bf16(input, weight) && (transposed || !onednn_takes_bf16());
}

Tensor convolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef output_padding, std::int64_t groups,
                   bool benchmark, bool deterministic, bool cudnn, bool tf32) {
  const auto compute = [&](const Tensor& x, const Tensor& w, const MaybeTensor& b) {
    return at::compositeexplicitautograd::_convolution(x, w, b, stride, padding, dilation,
                                                       transposed, output_padding, groups,
                                                       benchmark, deterministic, cudnn, tf32);
  };
  if (!is_our_convolution(input, weight, transposed)) return compute(input, weight, bias);
  const bool biased = bias && bias->defined();
  return narrow(compute(wide(input), wide(weight), biased ? wide(*bias) : Tensor()));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, std::int64_t groups,
    std::array<bool, 3> wanted) {
  const auto compute = [&](const Tensor& g, const Tensor& x, const Tensor& w) {
    return at::compositeexplicitautograd::convolution_backward(
        g, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, wanted);
  };
  if (!is_our_convolution(input, weight, transposed)) return compute(grad, input, weight);
  const auto [of_input, of_weight, of_bias] = compute(wide(grad), wide(input), wide(weight));
  return {narrow(of_input), narrow(of_weight), narrow(of_bias)};
}

// torch has these for every backend and none for CPUs alone, so nothing is replaced.
TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_convolution", &convolution);
  library.impl("convolution_backward", &convolution_backward);
}

#if !TUTTI_TORCH_AT_LEAST(2, 0)
// Whether torch would sum in bf16. Products of at most 16 x 16 x 16 never go to oneDNN.
bool is_ours(const Tensor& a, const Tensor& b) {
  if (!are_bf16(a, b)) return false;
  return !onednn_takes_bf16() || a.numel() * (b.dim() > 1 ? b.size(-1) : 1) <= 16 * 16 * 16;
}

Tensor& round_into(Tensor& out, const Tensor& sum) {
  at::native::resize_output(out, sum.sizes());
  return out.copy_(sum);
}

template <auto product>
Tensor product_of(const Tensor& a, const Tensor& b) {
  return is_ours(a, b) ? narrow(product(wide(a), wide(b))) : product(a, b);
}

template <auto product, auto product_out>
Tensor& product_into(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!is_ours(a, b) || !are_bf16(a, out)) return product_out(a, b, out);
  return round_into(out, product(wide(a), wide(b)));
}

// beta c + alpha a b
template <auto sum>
Tensor sum_of(const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
              const Scalar& alpha) {
  if (!is_ours(a, b) || !are_bf16(a, c)) return sum(c, a, b, beta, alpha);
  return narrow(sum(wide(c), wide(a), wide(b), beta, alpha));
}

template <auto sum, auto sum_out>
Tensor& sum_into(const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
                 const Scalar& alpha, Tensor& out) {
  if (!is_ours(a, b) || !are_bf16(c, out)) return sum_out(c, a, b, beta, alpha, out);
  return round_into(out, sum(wide(c), wide(a), wide(b), beta, alpha));
}

template <auto sum, auto sum_>
Tensor& sum_in_place(Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
                     const Scalar& alpha) {
  if (!is_ours(a, b) || !are_bf16(a, c)) return sum_(c, a, b, beta, alpha);
  return c.copy_(sum(wide(c), wide(a), wide(b), beta, alpha));
}

// torch warns of every kernel that is replaced, and users can do nothing about it.
struct WithoutThatWarning : c10::WarningHandler {
  void process(const c10::SourceLocation& where, const std::string& text, bool verbatim) override {
    if (text.find("Overriding a previously registered kernel") == std::string::npos)
      c10::WarningHandler::process(where, text, verbatim);
  }
};

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  namespace torchs = at::cpu;
  WithoutThatWarning handler;
  const c10::Warning::WarningHandlerGuard guard(&handler);
  library.impl("dot", &product_of<&torchs::dot>);
  library.impl("mm", &product_of<&torchs::mm>);
  library.impl("mm.out", &product_into<&torchs::mm, &torchs::mm_outf>);
  library.impl("bmm", &product_of<&torchs::bmm>);
  library.impl("bmm.out", &product_into<&torchs::bmm, &torchs::bmm_outf>);
  library.impl("addmv", &sum_of<&torchs::addmv>);
  library.impl("addmv_", &sum_in_place<&torchs::addmv, &torchs::addmv_>);
  library.impl("addmv.out", &sum_into<&torchs::addmv, &torchs::addmv_outf>);
  library.impl("addmm", &sum_of<&torchs::addmm>);
  library.impl("addmm_", &sum_in_place<&torchs::addmm, &torchs::addmm_>);
  library.impl("addmm.out", &sum_into<&torchs::addmm, &torchs::addmm_outf>);
  library.impl("baddbmm", &sum_of<&torchs::baddbmm>);
  library.impl("baddbmm_", &sum_in_place<&torchs::baddbmm, &torchs::baddbmm_>);
  library.impl("baddbmm.out", &sum_into<&torchs::baddbmm, &torchs::baddbmm_outf>);
}
#endif

}  // namespace
}  // namespace tutti::trainer

extern "C" const bool tutti_sums_bf16_in_float32;
const bool tutti_sums_bf16_in_float32 = true;
