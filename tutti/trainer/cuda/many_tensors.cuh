// One launch over many tensors, whose addresses travel as the kernel's arguments. Tensors are cut into
// pieces of kPiece elements, a block has one.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::trainer::cuda {

// Bytes of a kernel's arguments.
#if CUDART_VERSION >= 12010
constexpr std::size_t kArgumentBytes = 32000;
#else
constexpr std::size_t kArgumentBytes = 4000;
#endif
constexpr std::int64_t kPiece = 16384;
constexpr int kThreads = 256;  // of a block

inline std::int64_t pieces_of(std::int64_t elements) { return (elements + kPiece - 1) / kPiece; }

// T has `count`, the number of its elements; kOther bytes of arguments are for something else.
template <class T, std::size_t kOther>
struct Many {
  static constexpr int kMost =
      static_cast<int>((kArgumentBytes - kOther - 16) / (sizeof(T) + sizeof(unsigned)));
  T tensors[kMost];
  unsigned ends[kMost];  // the block after a tensor's last one
  int count = 0;

  // The tensor of this block, and its piece of it.
  __device__ int find(std::int64_t& piece) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (blockIdx.x < ends[middle])
        high = middle;
      else
        low = middle + 1;
    }
    piece = blockIdx.x - (low == 0 ? 0U : ends[low - 1]);
    return low;
  }
};

// Calls launch(many, blocks, blocks before these) with as many tensors at a time as fit.
template <class M, class T, class F>
void launch_many(const std::vector<T>& tensors, const char* what, F launch) {
  std::int64_t before = 0;
  for (std::size_t first = 0; first < tensors.size();) {
    M many;
    std::int64_t blocks = 0;
    for (; many.count < M::kMost && first < tensors.size(); ++first) {
      if (tensors[first].count == 0) continue;
      blocks += pieces_of(tensors[first].count);
      many.tensors[many.count] = tensors[first];
      many.ends[many.count++] = static_cast<unsigned>(blocks);
    }
    if (many.count == 0) break;
    launch(many, static_cast<unsigned>(blocks), before);
    before += blocks;
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": CUDA: " + cudaGetErrorString(error));
}

}  // namespace tutti::trainer::cuda
