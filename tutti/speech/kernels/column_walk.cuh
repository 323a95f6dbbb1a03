// Kernels that walk down the columns of a matrix and add up what they see.
#pragma once

#include <algorithm>

#include "tutti/speech/kernels/fused.cuh"

namespace tutti::speech::cuda {

template <int kCount>
struct Packs {
  float of[kCount][kPack];
};

constexpr int kRowsAtOnce = 8;  // of a block that walks down columns

// Walks a block's rows of its 256 columns: `read(row, column)`, of kAhead rows at a time before
// anything is done with them, then `add(what was read, row, column, sums)` to kSums times kPack
// sums. Those go to partials (kSums, gridDim.y, columns); the last block of the columns adds up what
// all have written, in order, to `totals` (kSums, columns): one launch instead of two.
template <int kSums, int kAhead, class Read, class Add>
__device__ void walk_columns(std::int64_t rows, int columns, const Sums& to, Read read, Add add) {
  __shared__ float shared[kRowsAtOnce][32 * kPack];
  __shared__ bool is_last;
  float* partials = to.partials;
  const int column = (blockIdx.x * 32 + threadIdx.x) * kPack;
  float sums[kSums][kPack] = {};
  if (column < columns) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * kRowsAtOnce;
    for (std::int64_t row = blockIdx.y * kRowsAtOnce + threadIdx.y; row < rows;
         row += kAhead * step) {
      decltype(read(row, column)) values[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) values[i] = read(min(row + i * step, rows - 1), column);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (row + i * step < rows) add(values[i], row + i * step, column, sums);
    }
  }
  for (int s = 0; s < kSums; ++s) {
    for (int i = 0; i < kPack; ++i) shared[threadIdx.y][threadIdx.x * kPack + i] = sums[s][i];
    __syncthreads();
    const int mine = threadIdx.y * 32 + threadIdx.x, at = blockIdx.x * 32 * kPack + mine;
    if (at < columns) {
      float sum = 0;
      for (int r = 0; r < kRowsAtOnce; ++r) sum += shared[r][mine];
      partials[(static_cast<std::int64_t>(s) * gridDim.y + blockIdx.y) * columns + at] = sum;
    }
    __syncthreads();
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0)
    is_last = atomicAdd(to.counters + blockIdx.x, 1U) == gridDim.y - 1;
  __syncthreads();
  if (!is_last) return;
  for (int s = 0; s < kSums; ++s) {
    float mine[kPack] = {};
    if (column < columns) {
      constexpr int kBlocks = 4;  // partial sums on their way at a time
      for (int block = threadIdx.y; block < gridDim.y; block += kBlocks * kRowsAtOnce) {
        float4 v[kBlocks][kPack / 4];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const int from = block + b * kRowsAtOnce;
          const auto* row = reinterpret_cast<const float4*>(
              partials +
              (static_cast<std::int64_t>(s) * gridDim.y + min(from, gridDim.y - 1)) * columns +
              column);
#pragma unroll
          for (int i = 0; i < kPack / 4; ++i) v[b][i] = __ldcg(row + i);
        }
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          if (block + b * kRowsAtOnce >= gridDim.y) break;
#pragma unroll
          for (int i = 0; i < kPack / 4; ++i) {
            mine[4 * i] += v[b][i].x;
            mine[4 * i + 1] += v[b][i].y;
            mine[4 * i + 2] += v[b][i].z;
            mine[4 * i + 3] += v[b][i].w;
          }
        }
      }
    }
    for (int i = 0; i < kPack; ++i) shared[threadIdx.y][threadIdx.x * kPack + i] = mine[i];
    __syncthreads();
    const int place = threadIdx.y * 32 + threadIdx.x, at = blockIdx.x * 32 * kPack + place;
    if (at < columns) {
      float sum = 0;
      for (int r = 0; r < kRowsAtOnce; ++r) sum += shared[r][place];
      to.totals[static_cast<std::int64_t>(s) * columns + at] = sum;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && threadIdx.y == 0) to.counters[blockIdx.x] = 0;  // for the next launch
}

inline dim3 walk_grid(const Matrix& size) {
  const unsigned wide = parts(size.columns, 32 * kPack);
  const unsigned tall =
      std::min<unsigned>(kPartialBlocks / 4, std::max(2 * kPartialBlocks / wide, 1U));
  return dim3(wide, std::min(parts(size.rows, kRowsAtOnce), tall));
}

}  // namespace tutti::speech::cuda
