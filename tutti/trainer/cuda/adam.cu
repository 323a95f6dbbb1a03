#include "tutti/trainer/cuda/adam.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tutti::trainer::cuda {
namespace {

constexpr int kTensors = 80;  // of a launch: arguments have 4 kB
constexpr int kSlices = 64;   // blocks of a tensor
constexpr int kThreads = 256;

struct Arguments {
  AdamTensor tensors[kTensors];
  AdamNumbers numbers;
};

__device__ inline void update(const AdamNumbers& n, const AdamTensor& t, float& p, float g,
                              float& m, float& v) {
  g = g * n.factor + n.l2 * p;
  m = n.beta1 * m + n.more1 * g;
  v = n.beta2 * v + n.more2 * g * g;
  p = p * n.decay - t.step_size * m / (sqrtf(v) * t.denom_scale + n.eps);
}

__device__ inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

__global__ void adam_kernel(const __grid_constant__ Arguments arguments) {
  const AdamTensor& t = arguments.tensors[blockIdx.y];
  const AdamNumbers& n = arguments.numbers;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  constexpr std::int64_t kStride = kSlices * kThreads;
  const bool aligned = is_aligned(t.parameter) && is_aligned(t.gradient) && is_aligned(t.average) &&
                       is_aligned(t.square);
  const std::int64_t fours = aligned ? t.count / 4 : 0;
  for (std::int64_t i = first; i < fours; i += kStride) {
    float4 p = reinterpret_cast<float4*>(t.parameter)[i];
    const float4 g = reinterpret_cast<const float4*>(t.gradient)[i];
    float4 m = reinterpret_cast<float4*>(t.average)[i], v = reinterpret_cast<float4*>(t.square)[i];
    update(n, t, p.x, g.x, m.x, v.x);
    update(n, t, p.y, g.y, m.y, v.y);
    update(n, t, p.z, g.z, m.z, v.z);
    update(n, t, p.w, g.w, m.w, v.w);
    reinterpret_cast<float4*>(t.parameter)[i] = p;
    reinterpret_cast<float4*>(t.average)[i] = m;
    reinterpret_cast<float4*>(t.square)[i] = v;
  }
  for (std::int64_t i = 4 * fours + first; i < t.count; i += kStride)
    update(n, t, t.parameter[i], t.gradient[i], t.average[i], t.square[i]);
}

}  // namespace

void adam(const std::vector<AdamTensor>& tensors, const AdamNumbers& numbers, CUstream_st* stream) {
  for (std::size_t first = 0; first < tensors.size(); first += kTensors) {
    const std::size_t count = std::min<std::size_t>(kTensors, tensors.size() - first);
    Arguments arguments;
    std::copy_n(tensors.begin() + static_cast<std::ptrdiff_t>(first), count, arguments.tensors);
    arguments.numbers = numbers;
    adam_kernel<<<dim3(kSlices, static_cast<unsigned>(count)), kThreads, 0, stream>>>(arguments);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("adam: CUDA: ") + cudaGetErrorString(error));
}

}  // namespace tutti::trainer::cuda
