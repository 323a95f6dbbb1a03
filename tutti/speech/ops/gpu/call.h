// How torch's tensors reach the kernels. Internal to ops/.
#pragma once

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <optional>

#include "tutti/speech/kernels/kernels.h"
#include "tutti/trainer/autocast.h"

namespace tutti::speech {

inline std::optional<cuda::Number> number_type(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return cuda::Number::kFloat;
    case torch::kFloat16:
      return cuda::Number::kHalf;
    case torch::kBFloat16:
      return cuda::Number::kBFloat16;
    default:
      return std::nullopt;
  }
}

inline cuda::Number number_of(const torch::Tensor& x) {
  return number_type(x.scalar_type()).value();
}

inline cuda::Stream stream_of(const torch::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

inline bool cuda_autocast_on() { return trainer::autocast_on(at::kCUDA); }

// The type of a matrix product with x: autocast's, or x's own.
inline torch::ScalarType product_type(const torch::Tensor& x) {
  return cuda_autocast_on() ? trainer::autocast_type(at::kCUDA) : x.scalar_type();
}

// Autograd's functions take no undefined tensors.
inline std::optional<torch::Tensor> given(const torch::Tensor& x) {
  return x.defined() ? std::make_optional(x) : std::nullopt;
}

// Inside an operation of ours torch's operations are plain arithmetic: no gradients, no casts.
struct PlainArithmetic {
  at::AutoDispatchBelowADInplaceOrView no_gradients;
  c10::impl::ExcludeDispatchKeyGuard no_casts{c10::DispatchKey::AutocastCUDA};
};

}  // namespace tutti::speech
#endif
