// What the kernels of relative_attention.h share. A block of four warps has a tile of 64 queries by
// 64 keys at a time, sixteen rows of it for each warp.
#pragma once

#include "tutti/speech/kernels/fused.cuh"
#include "tutti/speech/kernels/relative_attention.h"
#include "tutti/speech/kernels/tensor_core.cuh"

namespace tutti::speech::cuda {

constexpr int kTile = kQueryBlock;
constexpr int kThreads = 128;
// Rows in shared memory begin in different banks.
template <int D>
constexpr int kVectorRow = D + 8;
template <int D>
constexpr int kVectorTile = kTile* kVectorRow<D>;
// A row's 64 scores begin anywhere within 16 bytes, so nine times 16 bytes are read.
constexpr int kScoreRow = 72;
constexpr int kScoreTile = kTile * kScoreRow;
constexpr float kLog2E = 1.44269504F;

using Bf16 = __nv_bfloat16;
__host__ __device__ inline Bf16* bf16(void* pointer) { return static_cast<Bf16*>(pointer); }
__host__ __device__ inline const Bf16* bf16(const void* pointer) {
  return static_cast<const Bf16*>(pointer);
}

// Where in shared memory the scores of a tile's query begin.
__device__ inline int first_score(int row) { return row * kScoreRow + 7 - row % 8; }
// The column of its first 16 bytes.
__device__ inline int first_column(int row, int first_key) {
  return first_key + kTile - 8 - row / 8 * 8;
}

struct Place {
  int batch, head, blocks;
};

// Rows of the scores of a block of queries.
__device__ inline std::int64_t score_row(const AttentionSize& size, const Place& at, int block) {
  return ((static_cast<std::int64_t>(at.head) * at.blocks + block) * size.batch + at.batch) * kTile;
}

// 64 frames of d numbers, from frame `first` on; zeros past the end.
template <int D>
__device__ inline void copy_frames(Bf16* tile, const Bf16* from, std::int64_t row, int first,
                                   int frames) {
  constexpr int kChunks = D / 8;
#pragma unroll
  for (int c = threadIdx.x; c < kTile * kChunks; c += kThreads) {
    const int t = c / kChunks, d = c % kChunks * 8;
    const bool exists = first + t < frames;
    copy_later(tile + t * kVectorRow<D> + d, from + (exists ? first + t : 0) * row + d, exists);
  }
}

// Calls visit(row, n) for elements n .. n + 7 of each row of a tile of scores. Four lanes share a row.
template <class Visit>
__device__ inline void each_of_scores(Visit visit) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < kTile; r += kThreads / 4) {
    const int row = r + threadIdx.x / 4;
    visit(row, 8 * lane);
    visit(row, 8 * lane + 32);
    if (lane == 0) visit(row, 64);
  }
}

// Scores of 64 queries, whose rows begin at `from`, against 64 keys.
__device__ inline void copy_scores(Bf16* tile, const Bf16* from, int columns, int first_key) {
  each_of_scores([&](int row, int n) {
    const int column = first_column(row, first_key) + n;
    const bool exists = column < columns;
    copy_later(tile + row * kScoreRow + n, from + row * columns + (exists ? column : 0), exists);
  });
}

// Sixteen rows of a matrix in global memory as left matrices, from row `first` of `rows` on.
template <int D>
__device__ inline void read_left(Half2 (&left)[D / 16][4], const Bf16* from, std::int64_t row,
                                 int first, int rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + lane / 4 + 8 * half;
    const Bf16* at = from + (r < rows ? r : 0) * row + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
      for (int far = 0; far < 2; ++far)
        left[k][half + 2 * far] =
            r < rows ? *reinterpret_cast<const Half2*>(at + 16 * k + 8 * far) : 0;
  }
}

// Sixteen rows of results, times `factor`, to global memory.
template <int D>
__device__ inline void write_rows(Bf16* to, std::int64_t row, int first, int rows,
                                  const float (&x)[D / 8][4], float factor) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + lane / 4 + 8 * half;
    if (r >= rows) continue;
    Bf16* at = to + r * row + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<Half2*>(at + 8 * n) =
          pack_halves(x[n][2 * half] * factor, x[n][2 * half + 1] * factor);
  }
}

// Keys that exist. All threads call this.
__device__ inline int count_keys(const std::uint8_t* valid, int frames) {
  if (valid == nullptr) return frames;
  int count = 0;
  for (int t = threadIdx.x; t - static_cast<int>(threadIdx.x) < frames; t += kThreads)
    count += __syncthreads_count(t < frames && valid[t]);
  return count;
}

// Which attention weights stay. One hash serves two: of query i and of query i + 8 of its sixteen,
// as the threads of all kernels have these two.
struct Drops {
  std::uint32_t low, high, threshold;

  __device__ explicit Drops(const Dropout& dropout)
      : threshold(static_cast<std::uint32_t>(dropout.threshold) >> 15) {
    const std::uint64_t key = dropout.key_at == nullptr ? dropout.key : *dropout.key_at;
    low = static_cast<std::uint32_t>(key);
    high = static_cast<std::uint32_t>(key >> 32);
  }
  // Of the query of the tile's row `row` (row % 16 < 8) and key j.
  __device__ std::uint32_t index(const AttentionSize& size, const Place& at, int block, int row,
                                 int key) const {
    const std::uint32_t unit = at.batch * static_cast<std::uint32_t>(size.heads) + at.head;
    const std::uint32_t pair = (unit * at.blocks + block) * (kTile / 2) + row / 16 * 8 + row % 8;
    return pair * (at.blocks * kTile) + key;
  }
  __device__ std::uint32_t hash(std::uint32_t index) const {
    std::uint32_t h = index * 0x9E3779B1U + low;
    h ^= h >> 16;
    h *= 0x85EBCA6BU;
    h ^= high;
    h ^= h >> 13;
    h *= 0xC2B2AE35U;
    return h ^ h >> 16;
  }
  __device__ bool keeps_first(std::uint32_t h) const { return (h & 0xFFFFU) >= threshold; }
  __device__ bool keeps_second(std::uint32_t h) const { return h >> 16 >= threshold; }
};

template <class F>
void with_head_size(std::int64_t head_size, F f) {
  if (head_size == 32) return f(std::integral_constant<int, 32>());
  if (head_size == 64) return f(std::integral_constant<int, 64>());
  throw std::runtime_error("relative_attention: head size " + std::to_string(head_size));
}

}  // namespace tutti::speech::cuda
