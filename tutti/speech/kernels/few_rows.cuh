// What kernels for few rows share: rows that are normalised, and their products by tensor cores.
//
// The warps of a block share the inputs, the lanes of a warp the outputs of a tile and the rest of
// the inputs: lane 4 g + t has inputs 8 t .. 8 t + 7 of a chunk, of output g and of rows g and g + 8.
// In which order tensor cores see the inputs does not matter, as long as x and weights agree.
#pragma once

#include "tutti/speech/kernels/early.cuh"
#include "tutti/speech/kernels/few_rows.h"

namespace tutti::speech::cuda {

constexpr int kRows = static_cast<int>(kMostFewRows);
constexpr int kTile = 8;      // outputs that a warp multiplies at a time
constexpr int kChunk = 32;    // inputs that a warp multiplies at a time, 8 for each lane
constexpr int kMaxPacks = 8;  // of four, that a lane has of a row to be normalised
constexpr int kPadding = 32;  // elements between rows in shared memory: no bank is asked twice

// sum (16, 8) += x (16, 16) w' (8, 16), as the tensor cores hold them.
template <class T>
__device__ inline void multiply(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The weights of some tiles that a lane multiplies, kBatch chunks at a time.
template <class T, int kTiles, int kBatch>
struct WeightTiles {
  uint4 held[kTiles][kBatch];

  // `row_of(tile)`: where this lane's inputs of its output of the tile begin.
  template <class RowOf>
  __device__ void fetch(const RowOf& row_of, int from, int chunks) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const T* w = row_of(tile);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (from + i < chunks)
          held[tile][i] = __ldcs(reinterpret_cast<const uint4*>(w + (from + i) * kChunk));
    }
  }
  // `read_x(row, chunk)`: this lane's inputs.
  template <class ReadX>
  __device__ void multiply_with(const ReadX& read_x, int from, int chunks,
                                float (&sum)[kTiles][4]) const {
    const int g = threadIdx.x / 4;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (from + i >= chunks) break;
      const uint4 low = read_x(g, from + i), high = read_x(g + 8, from + i);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 w = held[tile][i];
        multiply<T>(sum[tile], low.x, high.x, low.y, high.y, w.x, w.y);
        multiply<T>(sum[tile], low.z, high.z, low.w, high.w, w.z, w.w);
      }
    }
  }
};

// What a warp has of the sums, to (kRows, kTiles * kTile).
template <int kTiles>
__device__ inline void put_partials(const float (&sum)[kTiles][4], float* partials) {
  constexpr int kOut = kTiles * kTile;
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float* to = partials + g * kOut + tile * kTile + 2 * t;
    to[0] = sum[tile][0];
    to[1] = sum[tile][1];
    to[8 * kOut] = sum[tile][2];
    to[8 * kOut + 1] = sum[tile][3];
  }
}

struct NormRows {
  const float* x;
  int rows, in;
  float eps;
};

// A norm's weight and bias into shared memory.
template <class T>
__device__ void copy_parameters(const void* weight, const void* bias, int in, T* parameters) {
  const int threads = blockDim.x * blockDim.y;
  for (int at = (threadIdx.y * 32 + threadIdx.x) * 8; at < in; at += threads * 8) {
    *reinterpret_cast<uint4*>(parameters + at) =
        *reinterpret_cast<const uint4*>(static_cast<const T*>(weight) + at);
    *reinterpret_cast<uint4*>(parameters + in + at) =
        *reinterpret_cast<const uint4*>(static_cast<const T*>(bias) + at);
  }
}

// Rows of x, normalised, into shared memory; a warp has a row.
template <class T>
__device__ void stage_normed(const NormRows& a, const T* parameters, T* staged) {
  const int lane = threadIdx.x, packs = a.in / 128;
  for (int row = threadIdx.y; row < a.rows; row += blockDim.y) {
    const float* x = a.x + static_cast<std::int64_t>(row) * a.in;
    float v[kMaxPacks][4];
    float sum = 0, squares = 0;
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p)
      if (p < packs) read_pack(x + (p * 32 + lane) * 4, v[p]);
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p)
      if (p < packs) sum += (v[p][0] + v[p][1]) + (v[p][2] + v[p][3]);
    const float mean = warp_sum(sum) / static_cast<float>(a.in);
    const auto squared = [&](float value) { return (value - mean) * (value - mean); };
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p)
      if (p < packs)
        squares += (squared(v[p][0]) + squared(v[p][1])) + (squared(v[p][2]) + squared(v[p][3]));
    const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(a.in) + a.eps);
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p) {
      if (p >= packs) break;
      const int at = (p * 32 + lane) * 4;
      float w[4], b[4];
      read_pack(parameters + at, w);
      read_pack(parameters + a.in + at, b);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[p][i] = fmaf((v[p][i] - mean) * rstd, w[i], b[i]);
      write_pack(staged + row * (a.in + kPadding) + at, v[p]);
    }
  }
}

// Rows of x as they are, into shared memory.
template <class T>
__device__ void copy_rows(const T* x, int rows, int in, T* staged) {
  const int threads = blockDim.x * blockDim.y;
  for (int at = (threadIdx.y * 32 + threadIdx.x) * 8; at < rows * in; at += threads * 8)
    *reinterpret_cast<uint4*>(staged + at + at / in * kPadding) =
        *reinterpret_cast<const uint4*>(x + at);
}

template <class F>
void with_half_type(Number number, F f) {
  if (number == Number::kFloat) throw std::runtime_error("few rows: float is not known");
  if (number == Number::kHalf) return f(static_cast<__half*>(nullptr));
  f(static_cast<__nv_bfloat16*>(nullptr));
}

}  // namespace tutti::speech::cuda
