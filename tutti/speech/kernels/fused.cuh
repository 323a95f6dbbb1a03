// What the kernels of fused.h share.
#pragma once

#include "tutti/speech/kernels/device.cuh"
#include "tutti/speech/kernels/dropout_hash.h"
#include "tutti/speech/kernels/fused.h"

namespace tutti::speech::cuda {

constexpr int kPack = 8;             // neighbours of a thread
constexpr int kPartialBlocks = 528;  // rows of partial sums, at most: four for each processor
constexpr int kWarps = 4;            // of a block that normalises: one for each row

// What an element is multiplied with; see Dropout. The same arithmetic as on the CPU. Made once for a
// kernel and without a branch, so that a thread's elements are computed side by side.
class Keeper {
 public:
  __device__ explicit Keeper(const Dropout& dropout)
      : threshold_(dropout.threshold), scale_(dropout.scale) {
    std::uint64_t key = dropout.key;
    if (dropout.key_at != nullptr)
      key = __ldg(reinterpret_cast<const unsigned long long*>(dropout.key_at));
    low_ = static_cast<std::uint32_t>(key);
    high_ = static_cast<std::uint32_t>(key >> 32);
  }
  __device__ float operator()(std::int64_t index) const {
    return dropout_keeps(static_cast<std::uint32_t>(index), low_, high_, threshold_) ? scale_
                                                                                     : 0.0F;
  }

 private:
  std::uint32_t low_, high_;
  std::int32_t threshold_;  // 0: nothing is less
  float scale_;
};

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }
__device__ inline float gelu(float x) { return 0.5F * x * (1.0F + erff(x * 0.70710678F)); }
__device__ inline float gelu_slope(float x) {
  return 0.5F * (1.0F + erff(x * 0.70710678F)) + x * 0.39894228F * __expf(-0.5F * x * x);
}

__device__ inline std::int64_t first_of_pack() {
  return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
}

inline unsigned packs(const Matrix& size) { return parts(size.rows * size.columns, 256 * kPack); }

template <class T>
T* as(void* pointer) {
  return static_cast<T*>(pointer);
}
template <class T>
const T* as(const void* pointer) {
  return static_cast<const T*>(pointer);
}

}  // namespace tutti::speech::cuda
