// From tensors to what the kernels of tutti/speech/cuda take. For builds with these kernels only.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/types.h>

#include "tutti/core/error.h"
#include "tutti/speech/cuda/kernels.h"
#include "tutti/trainer/torch_version.h"

namespace tutti::speech::cuda {

inline Number number_of(const torch::Tensor& x) {
  switch (x.scalar_type()) {
    case torch::kFloat32:
      return Number::kFloat;
    case torch::kFloat16:
      return Number::kHalf;
    case torch::kBFloat16:
      return Number::kBFloat16;
    default:
      throw InternalError("a GPU kernel got a tensor of a type it does not know");
  }
}

inline Stream stream_of(const torch::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

// What autocast would have a convolution of x give.
inline torch::ScalarType result_type(const torch::Tensor& x) {
#if TUTTI_TORCH_AT_LEAST(2, 4)
  if (at::autocast::is_autocast_enabled(at::kCUDA))
    return at::autocast::get_autocast_dtype(at::kCUDA);
#else
  if (at::autocast::is_enabled()) return at::autocast::get_autocast_gpu_dtype();
#endif
  return x.scalar_type();
}

}  // namespace tutti::speech::cuda
