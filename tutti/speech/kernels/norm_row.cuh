// A row that is normalised: a warp has the row, a lane has kChunks packs of it.
#pragma once

#include <algorithm>

#include "tutti/speech/kernels/fused.cuh"

namespace tutti::speech::cuda {

template <int P, int kChunks>
struct Row {
  static constexpr int kColumns = 32 * P * kChunks;
  float v[kChunks][P];

  __device__ static int column(int chunk) { return (chunk * 32 + threadIdx.x) * P; }
  template <class T>
  __device__ void read(const T* row) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) read_pack(row + column(c), v[c]);
  }
  template <class T>
  __device__ void write(T* row) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) write_pack(row + column(c), v[c]);
  }
  template <class F>
  __device__ void each(F f) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < P; ++i) f(v[c][i], c, i);
  }
};

// Mean and 1 / standard deviation of a row.
template <class R>
__device__ float2 moments(R& row, float eps) {
  float sum = 0, squares = 0;
  row.each([&](float& v, int, int) { sum += v; });
  const float mean = warp_sum(sum) / R::kColumns;
  row.each([&](float& v, int, int) { squares = fmaf(v - mean, v - mean, squares); });
  return make_float2(mean, rsqrtf(warp_sum(squares) / R::kColumns + eps));
}

template <class R, class Y>
__device__ void write_normed(R row, float2 m, const float* weight, const float* bias, Y* y) {
  R w, b;
  w.read(weight);
  b.read(bias);
  row.each([&](float& v, int c, int i) { v = fmaf((v - m.x) * m.y, w.v[c][i], b.v[c][i]); });
  row.write(y);
}

// Sums of kSums rows' worth of numbers over the warps of a block, to partials (kSums, gridDim.x,
// columns).
template <class R, int kSums>
__device__ void write_partials(R (&sums)[kSums], float* partials) {
  __shared__ __align__(16) float shared[kWarps][R::kColumns];
  for (int s = 0; s < kSums; ++s) {
    sums[s].write(shared[threadIdx.y]);
    __syncthreads();
    for (int column = threadIdx.y * 32 + threadIdx.x; column < R::kColumns; column += kWarps * 32) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += shared[w][column];
      partials[(static_cast<std::int64_t>(s) * gridDim.x + blockIdx.x) * R::kColumns + column] =
          sum;
    }
    __syncthreads();
  }
}

// The gradient of a normalised row's input, from that of its normalised values.
template <class R>
__device__ void through_norm(R& grad, R& normal, float rstd) {
  float sum = 0, product = 0;
  grad.each([&](float& g, int c, int i) {
    sum += g;
    product = fmaf(g, normal.v[c][i], product);
  });
  sum = warp_sum(sum) / R::kColumns;
  product = warp_sum(product) / R::kColumns;
  grad.each([&](float& g, int c, int i) { g = rstd * (g - sum - normal.v[c][i] * product); });
}

// Calls f with <pack, chunks> as integral constants.
template <class F>
void with_width(std::int64_t columns, F f) {
  using std::integral_constant;
  const integral_constant<int, 4> four;
  const integral_constant<int, 8> eight;
  switch (columns) {
    case 128:
      return f(four, integral_constant<int, 1>());
    case 256:
      return f(eight, integral_constant<int, 1>());
    case 384:
      return f(four, integral_constant<int, 3>());
    case 512:
      return f(eight, integral_constant<int, 2>());
    case 768:
      return f(eight, integral_constant<int, 3>());
    case 1024:
      return f(eight, integral_constant<int, 4>());
    default:
      throw std::runtime_error("norm of " + std::to_string(columns) + " columns");
  }
}

// Blocks of a processor for a kernel that walks over rows and adds up what it sees for `norms`
// norms: wide rows need many registers.
constexpr int walkers_at_once(int columns, int norms) { return columns * norms <= 512 ? 4 : 2; }
inline unsigned walkers(const Matrix& size, int norms) {
  const int blocks = kPartialBlocks / 4 * walkers_at_once(static_cast<int>(size.columns), norms);
  return std::min<unsigned>(parts(size.rows, kWarps), blocks);
}

// From partials (count, blocks, columns) to sums (count, columns).
void launch_finish(const float* partials, float* sums, int count, int blocks, std::int64_t columns,
                   Stream stream);

}  // namespace tutti::speech::cuda
