// The sum of the squares of many tensors in two kernels, whose addresses travel as arguments: torch
// makes a tensor of every norm and stacks them, which for a few hundred gradients takes the host
// longer than a GPU needs for an update. No torch here; queued on `stream`.
#pragma once

#include <cstdint>
#include <vector>

struct CUstream_st;

namespace tutti::trainer::cuda {

struct Floats {
  const float* data = nullptr;
  std::int64_t count = 0;
};

// Floats of scratch for these.
std::int64_t squared_norm_partials(const std::vector<Floats>& tensors);
// *result, in device memory like everything here, becomes the sum; always in the same order.
void squared_norm(const std::vector<Floats>& tensors, float* partials, float* result,
                  CUstream_st* stream);

}  // namespace tutti::trainer::cuda
