// What the kernels of this folder share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

template <class T>
__device__ inline float to_float(T value) {
  return static_cast<float>(value);
}
template <class T>
__device__ inline T from_float(float value) {
  return static_cast<T>(value);
}

// N neighbours that are read or written at once, or 16 bytes at a time.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

template <int N, class T>
__device__ inline void read_pack(const T* from, float (&to)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(pack.at[i]);
}
template <int N, class T>
__device__ inline void write_pack(T* to, const float (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.at[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, step));
  return x;
}

inline void check_launch(const char* what) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": CUDA: " + cudaGetErrorString(error));
}

// Calls f with a null pointer of the C++ type of `number`.
template <class F>
void with_type(Number number, F f) {
  switch (number) {
    case Number::kFloat:
      return f(static_cast<float*>(nullptr));
    case Number::kHalf:
      return f(static_cast<__half*>(nullptr));
    case Number::kBFloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
  }
}

// Kernels with more shared memory than the default must be allowed to have it.
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  if (bytes > 48 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
}

inline unsigned parts(std::int64_t total, std::int64_t size) {
  return static_cast<unsigned>((total + size - 1) / size);
}

}  // namespace tutti::speech::cuda
