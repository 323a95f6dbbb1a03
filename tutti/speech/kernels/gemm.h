// Matrix products on a GPU with little to do for the host: how to multiply matrices of some size is
// asked of cuBLASLt once, where torch asks every time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

// d (m, n) = a (m, k) b (k, n) [+ bias (n)] [+ d]; row by row in memory, sums in float.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // a lies there as (k, m)
  bool transpose_b = false;  // b lies there as (n, k)
  bool accumulate = false;   // add to what is in d
  // Done as a product of about as many rows is: to ask takes up to milliseconds, and in search every
  // batch has a length of its own.
  bool as_others = false;
  Number in = Number::kBFloat16, out = Number::kBFloat16;
};

// `bias` may be null and is of type `out`. `workspace` is scratch of `bytes` bytes. Each thread
// asks on its own, for the current device.
void gemm(const Gemm& call, const void* a, const void* b, const void* bias, void* d,
          void* workspace, std::size_t bytes, Stream stream);

}  // namespace tutti::speech::cuda
