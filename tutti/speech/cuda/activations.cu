#include <algorithm>

#include "tutti/speech/cuda/fused.cuh"

namespace tutti::speech::cuda {
namespace {

__device__ inline float curve_of(Curve curve, float x) {
  switch (curve) {
    case Curve::kRelu:
      return fmaxf(x, 0.0F);
    case Curve::kSwish:
      return x * sigmoid(x);
    case Curve::kGelu:
      return gelu(x);
    case Curve::kIdentity:
      break;
  }
  return x;
}
__device__ inline float slope_of(Curve curve, float x) {
  switch (curve) {
    case Curve::kRelu:
      return x > 0 ? 1.0F : 0.0F;
    case Curve::kSwish: {
      const float s = sigmoid(x);
      return s * (1.0F + x * (1.0F - s));
    }
    case Curve::kGelu:
      return gelu_slope(x);
    case Curve::kIdentity:
      break;
  }
  return 1.0F;
}

constexpr int kRowsAtOnce = 8;  // of a block that walks down columns

// Walks a block's rows of its 256 columns; `visit(row, column, sums)` adds to kSums times kPack
// sums. They go to partials (kSums, gridDim.y, columns); the last block of the columns adds up what
// all have written, in order, to `totals` (kSums, columns): one launch instead of two.
template <int kSums, class Visit>
__device__ void walk_columns(std::int64_t rows, int columns, const Sums& to, Visit visit) {
  __shared__ float shared[kRowsAtOnce][32 * kPack];
  __shared__ bool is_last;
  float* partials = to.partials;
  const int column = (blockIdx.x * 32 + threadIdx.x) * kPack;
  float sums[kSums][kPack] = {};
  if (column < columns)
    for (std::int64_t row = blockIdx.y * kRowsAtOnce + threadIdx.y; row < rows;
         row += gridDim.y * kRowsAtOnce)
      visit(row, column, sums);
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
    if (column < columns)
      for (int block = threadIdx.y; block < gridDim.y; block += kRowsAtOnce) {
        const float* from =
            partials + (static_cast<std::int64_t>(s) * gridDim.y + block) * columns + column;
#pragma unroll
        for (int i = 0; i < kPack; ++i) mine[i] += __ldcg(from + i);
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

dim3 walk_grid(const Matrix& size) {
  const unsigned wide = parts(size.columns, 32 * kPack);
  const unsigned tall =
      std::min<unsigned>(kPartialBlocks / 2, std::max(4 * kPartialBlocks / wide, 1U));
  return dim3(wide, std::min(parts(size.rows, kRowsAtOnce), tall));
}

template <class T>
__global__ void column_sums_kernel(const T* __restrict__ g, Sums to, std::int64_t rows,
                                   int columns) {
  walk_columns<1>(rows, columns, to, [&](std::int64_t row, int column, auto& sums) {
    float v[kPack];
    read_pack(g + row * columns + column, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sums[0][i] += v[i];
  });
}

template <class T>
__global__ void activate_back_kernel(const T* __restrict__ g, const T* __restrict__ h, Curve curve,
                                     Dropout dropout, T* __restrict__ grad_h, Sums to,
                                     std::int64_t rows, int columns) {
  walk_columns<1>(rows, columns, to, [&](std::int64_t row, int column, auto& sums) {
    const std::int64_t at = row * columns + column;
    float gv[kPack], hv[kPack];
    read_pack(g + at, gv);
    read_pack(h + at, hv);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      gv[i] *= keep(dropout, at + i) * slope_of(curve, hv[i]);
      sums[0][i] += gv[i];
    }
    write_pack(grad_h + at, gv);
  });
}

template <class T>
__global__ void queries_back_kernel(const T* __restrict__ grad_with_u,
                                    const T* __restrict__ grad_with_v, T* __restrict__ grad_q,
                                    Sums to, std::int64_t rows, int columns, int head_size,
                                    float scale) {
  walk_columns<2>(rows, columns, to, [&](std::int64_t row, int column, auto& sums) {
    const std::int64_t at = row * columns + column;
    const int head = column / head_size, d = column % head_size;
    float u[kPack], v[kPack];
    read_pack(grad_with_u + at, u);
    read_pack(grad_with_v + (head * rows + row) * head_size + d, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float through_v = v[i] * scale;
      sums[0][i] += u[i];
      sums[1][i] += through_v;
      u[i] += through_v;
    }
    write_pack(grad_q + at, u);
  });
}

template <class T>
__global__ void activate_kernel(const T* __restrict__ h, Curve curve, Dropout dropout,
                                T* __restrict__ y, std::int64_t count) {
  const std::int64_t at = first_of_pack();
  if (at >= count) return;
  float v[kPack];
  read_pack(h + at, v);
#pragma unroll
  for (int i = 0; i < kPack; ++i) v[i] = curve_of(curve, v[i]) * keep(dropout, at + i);
  write_pack(y + at, v);
}

template <class T>
__global__ void queries_kernel(const T* __restrict__ q, std::int64_t q_row,
                               const float* __restrict__ u, const float* __restrict__ v,
                               T* __restrict__ with_u, T* __restrict__ with_v, std::int64_t rows,
                               int columns, int head_size, float scale) {
  const std::int64_t at = first_of_pack();
  if (at >= rows * columns) return;
  const std::int64_t row = at / columns;
  const int column = static_cast<int>(at % columns), head = column / head_size;
  float x[kPack], y[kPack], z[kPack];
  read_pack(q + row * q_row + column, x);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    y[i] = x[i] + u[column + i];
    z[i] = (x[i] + v[column + i]) * scale;
  }
  write_pack(with_u + at, y);
  write_pack(with_v + (head * rows + row) * head_size + column % head_size, z);
}

}  // namespace

void activate(Number type, const void* h, Curve curve, const Dropout& dropout, void* y,
              const Matrix& size, Stream stream) {
  with_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    activate_kernel<T><<<packs(size), 256, 0, stream>>>(as<T>(h), curve, dropout, as<T>(y),
                                                        size.rows * size.columns);
  });
  check_launch("activate");
}

void activate_back(Number type, const void* g, const void* h, Curve curve, const Dropout& dropout,
                   void* grad_h, const Sums& to, const Matrix& size, Stream stream) {
  const dim3 grid = walk_grid(size);
  with_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    activate_back_kernel<T><<<grid, dim3(32, kRowsAtOnce), 0, stream>>>(
        as<T>(g), as<T>(h), curve, dropout, as<T>(grad_h), to, size.rows,
        static_cast<int>(size.columns));
  });
  check_launch("activate_back");
}

void column_sums(Number type, const void* g, const Sums& to, const Matrix& size, Stream stream) {
  const dim3 grid = walk_grid(size);
  with_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    column_sums_kernel<T><<<grid, dim3(32, kRowsAtOnce), 0, stream>>>(
        as<T>(g), to, size.rows, static_cast<int>(size.columns));
  });
  check_launch("column_sums");
}

void position_queries(const Queries& call, const void* q, const float* u, const float* v,
                      void* with_u, void* with_v, Stream stream) {
  with_type(call.type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    queries_kernel<T><<<packs(call.size), 256, 0, stream>>>(
        as<T>(q), call.q_row, u, v, as<T>(with_u), as<T>(with_v), call.size.rows,
        static_cast<int>(call.size.columns), static_cast<int>(call.head_size), call.scale);
  });
  check_launch("position_queries");
}

void position_queries_back(const Queries& call, const void* grad_with_u, const void* grad_with_v,
                           void* grad_q, const Sums& grad_uv, Stream stream) {
  const dim3 grid = walk_grid(call.size);
  with_type(call.type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    queries_back_kernel<T><<<grid, dim3(32, kRowsAtOnce), 0, stream>>>(
        as<T>(grad_with_u), as<T>(grad_with_v), as<T>(grad_q), grad_uv, call.size.rows,
        static_cast<int>(call.size.columns), static_cast<int>(call.head_size), call.scale);
  });
  check_launch("position_queries_back");
}

}  // namespace tutti::speech::cuda
