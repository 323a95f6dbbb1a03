#include "tutti/trainer/cuda/squared_norm.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tutti::trainer::cuda {
namespace {

constexpr int kTensors = 240;  // of a launch: arguments have 4 kB
constexpr int kSlices = 16;    // blocks of a tensor
constexpr int kThreads = 256;

struct Arguments {
  Floats tensors[kTensors];
};

__device__ double block_sum(double value) {
  __shared__ double shared[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += shared[i];
  return sum;
}

__global__ void squares(const Arguments arguments, float* partials) {
  const Floats tensor = arguments.tensors[blockIdx.y];
  float sum = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < tensor.count; i += static_cast<std::int64_t>(kSlices) * kThreads)
    sum = fmaf(tensor.data[i], tensor.data[i], sum);
  const double all = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.y * kSlices + blockIdx.x] = static_cast<float>(all);
}

__global__ void add_up(const float* partials, std::int64_t count, float* result) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  const double all = block_sum(sum);
  if (threadIdx.x == 0) *result = static_cast<float>(all);
}

}  // namespace

std::int64_t squared_norm_partials(std::size_t tensors) {
  return static_cast<std::int64_t>(tensors) * kSlices;
}

void squared_norm(const std::vector<Floats>& tensors, float* partials, float* result,
                  CUstream_st* stream) {
  for (std::size_t first = 0; first < tensors.size(); first += kTensors) {
    const std::size_t count = std::min<std::size_t>(kTensors, tensors.size() - first);
    Arguments arguments;
    std::copy_n(tensors.begin() + static_cast<std::ptrdiff_t>(first), count, arguments.tensors);
    squares<<<dim3(kSlices, static_cast<unsigned>(count)), kThreads, 0, stream>>>(
        arguments, partials + first * kSlices);
  }
  add_up<<<1, kThreads, 0, stream>>>(partials, squared_norm_partials(tensors.size()), result);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("squared_norm: CUDA: ") + cudaGetErrorString(error));
}

}  // namespace tutti::trainer::cuda
