// Adam and AdamW for many tensors in a few kernels, whose addresses travel as arguments. Torch's fused
// kernels take more launches and write gradients back, too. No torch here; queued on `stream`.
#pragma once

#include <cstdint>
#include <vector>

struct CUstream_st;

namespace tutti::trainer::cuda {

// One parameter and its state, `count` floats of device memory each.
struct AdamTensor {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* average = nullptr;  // of gradients
  float* square = nullptr;   // average of their squares
  std::int64_t count = 0;
  float step_size = 0;    // lr / (1 - beta1^t)
  float denom_scale = 1;  // 1 / sqrt(1 - beta2^t)
};

struct AdamNumbers {
  float beta1 = 0.9F, beta2 = 0.999F;
  float more1 = 0.1F, more2 = 0.001F;  // 1 - beta
  float eps = 1e-8F;
  float decay = 1;   // p *= decay
  float l2 = 0;      // g += l2 * p
  float factor = 1;  // of gradients
  // Where the factor is not known at the launch, the sum of all gradients' squares in device memory:
  // with norm = sqrt(*squared_norm) * average the factor is average * min(1, limit / norm), or average
  // where the limit is 0. A norm that is not finite leaves everything as it is.
  const float* squared_norm = nullptr;
  double average = 1, limit = 0;
};

void adam(const std::vector<AdamTensor>& tensors, const AdamNumbers& numbers, CUstream_st* stream);

}  // namespace tutti::trainer::cuda
