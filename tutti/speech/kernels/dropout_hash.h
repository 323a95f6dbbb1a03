// Which elements dropout drops: a hash of the element's index and a key, the same on processors and
// GPUs. The mixing is MurmurHash3's finalizer.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TUTTI_ANYWHERE __host__ __device__ __forceinline__
#else
#define TUTTI_ANYWHERE inline __attribute__((always_inline))
#endif

namespace tutti::speech::cuda {

// Whether the element stays. `threshold`: hashes of 31 bits below it are dropped.
TUTTI_ANYWHERE bool dropout_keeps(std::uint32_t index, std::uint32_t key_low,
                                  std::uint32_t key_high, std::int32_t threshold) {
  std::uint32_t h = index * 0x9E3779B1U + key_low;
  h ^= h >> 16;
  h *= 0x85EBCA6BU;
  h ^= key_high;
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  h ^= h >> 16;
  return static_cast<std::int32_t>(h >> 1) >= threshold;
}

}  // namespace tutti::speech::cuda

#undef TUTTI_ANYWHERE
