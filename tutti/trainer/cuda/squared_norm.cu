#include "tutti/trainer/cuda/squared_norm.h"

#include "tutti/trainer/cuda/many_tensors.cuh"

namespace tutti::trainer::cuda {
namespace {

using Tensors = Many<Floats, 16>;

__device__ double block_sum(double value) {
  __shared__ double shared[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += shared[i];
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    squares(const __grid_constant__ Tensors many, float* partials) {
  std::int64_t piece = 0;
  const Floats& tensor = many.tensors[many.find(piece)];
  const std::int64_t begin = piece * kPiece, end = min(begin + kPiece, tensor.count);
  const bool aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  const std::int64_t fours = aligned ? begin + (end - begin) / 4 * 4 : begin;
  float sum = 0;
#pragma unroll 4
  for (std::int64_t i = begin + 4 * threadIdx.x; i < fours; i += 4 * kThreads) {
    const float4 x = *reinterpret_cast<const float4*>(tensor.data + i);
    sum = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum))));
  }
  for (std::int64_t i = fours + threadIdx.x; i < end; i += kThreads)
    sum = fmaf(tensor.data[i], tensor.data[i], sum);
  const double all = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = static_cast<float>(all);
}

__global__ void add_up(const float* partials, std::int64_t count, float* result) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  const double all = block_sum(sum);
  if (threadIdx.x == 0) *result = static_cast<float>(all);
}

}  // namespace

std::int64_t squared_norm_partials(const std::vector<Floats>& tensors) {
  std::int64_t count = 0;
  for (const Floats& tensor : tensors) count += pieces_of(tensor.count);
  return count;
}

void squared_norm(const std::vector<Floats>& tensors, float* partials, float* result,
                  CUstream_st* stream) {
  launch_many<Tensors>(tensors, "squared_norm",
                       [&](const Tensors& many, unsigned blocks, std::int64_t before) {
                         squares<<<blocks, kThreads, 0, stream>>>(many, partials + before);
                       });
  add_up<<<1, kThreads, 0, stream>>>(partials, squared_norm_partials(tensors), result);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("squared_norm: CUDA: ") + cudaGetErrorString(error));
}

}  // namespace tutti::trainer::cuda
