#include "tutti/speech/cuda/fused.h"

#include <algorithm>

#include "tutti/speech/cuda/device.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kPack = 8;             // neighbours of a thread
constexpr int kPartialBlocks = 264;  // rows of partial sums, at most: two for each processor
constexpr int kWarps = 4;            // of a block that normalises: one for each row

// See Dropout; the same arithmetic as on the CPU.
__device__ inline float kept(const Dropout& dropout, std::uint32_t index) {
  std::uint32_t h = index * 0x9E3779B1U + static_cast<std::uint32_t>(dropout.key);
  h ^= h >> 16;
  h *= 0x85EBCA6BU;
  h ^= static_cast<std::uint32_t>(dropout.key >> 32);
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  h ^= h >> 16;
  return static_cast<std::int32_t>(h >> 1) >= dropout.threshold ? dropout.scale : 0.0F;
}
__device__ inline float keep(const Dropout& dropout, std::int64_t index) {
  return dropout.threshold == 0 ? 1.0F : kept(dropout, static_cast<std::uint32_t>(index));
}

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }
__device__ inline float gelu(float x) { return 0.5F * x * (1.0F + erff(x * 0.70710678F)); }
__device__ inline float gelu_slope(float x) {
  return 0.5F * (1.0F + erff(x * 0.70710678F)) + x * 0.39894228F * __expf(-0.5F * x * x);
}

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

// ---- sums over rows -------------------------------------------------------------------------

// From partials (sums, blocks, columns) to sums (sums, columns).
__global__ void finish_sums(const float* __restrict__ partials, float* __restrict__ sums,
                            int blocks, int columns) {
  __shared__ float shared[8][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  if (column < columns)
    for (int b = threadIdx.y; b < blocks; b += 8)
      sum += partials[(static_cast<std::int64_t>(blockIdx.y) * blocks + b) * columns + column];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int i = 1; i < 8; ++i) sum += shared[i][threadIdx.x];
  sums[static_cast<std::int64_t>(blockIdx.y) * columns + column] = sum;
}

void launch_finish(const float* partials, float* sums, int count, int blocks, std::int64_t columns,
                   Stream stream) {
  finish_sums<<<dim3(parts(columns, 32), static_cast<unsigned>(count)), dim3(32, 8), 0, stream>>>(
      partials, sums, blocks, static_cast<int>(columns));
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

// ---- element by element ---------------------------------------------------------------------

__device__ inline std::int64_t first_of_pack() {
  return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
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

template <class T>
__global__ void gate_multiply_kernel(const T* __restrict__ h, const T* __restrict__ gate,
                                     Dropout dropout, T* __restrict__ y, std::int64_t rows,
                                     int columns) {
  const std::int64_t at = first_of_pack();
  if (at >= rows * columns) return;
  float x[kPack], c[kPack];
  read_pack(h + at + at / columns * columns, x);
  read_pack(gate + at, c);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] = gelu(x[i]) * c[i] * keep(dropout, at + i);
  write_pack(y + at, x);
}

template <class T>
__global__ void gate_multiply_back_kernel(const T* __restrict__ h, const T* __restrict__ gate,
                                          const T* __restrict__ g, Dropout dropout,
                                          T* __restrict__ grad_gate, T* __restrict__ grad_h,
                                          std::int64_t rows, int columns) {
  const std::int64_t at = first_of_pack();
  if (at >= rows * columns) return;
  const std::int64_t wide = at + at / columns * columns;
  float x[kPack], c[kPack], gv[kPack];
  read_pack(h + wide, x);
  read_pack(gate + at, c);
  read_pack(g + at, gv);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    gv[i] *= keep(dropout, at + i);
    c[i] *= gv[i] * gelu_slope(x[i]);
    gv[i] *= gelu(x[i]);
  }
  write_pack(grad_gate + at, gv);
  write_pack(grad_h + wide, c);
}

template <class T>
__global__ void join_kernel(Join call, const T* __restrict__ a, const T* __restrict__ b,
                            T* __restrict__ joined) {
  const std::int64_t at = first_of_pack(), columns = call.size.columns;
  if (at >= call.size.rows * columns) return;
  const std::int64_t row = at / columns, wide = at + row * columns;
  float x[kPack] = {}, y[kPack] = {};
  if (call.valid == nullptr || call.valid[row]) {
    read_pack(a + at, x);
    read_pack(b + at, y);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      x[i] *= keep(call.dropout_a, at + i);
      y[i] *= keep(call.dropout_b, at + i);
    }
  }
  write_pack(joined + wide, x);
  write_pack(joined + wide + columns, y);
}

template <class T>
__global__ void join_back_kernel(Join call, const T* __restrict__ g, T* __restrict__ grad_a,
                                 T* __restrict__ grad_b) {
  const std::int64_t at = first_of_pack(), columns = call.size.columns;
  if (at >= call.size.rows * columns) return;
  const std::int64_t row = at / columns, wide = at + row * columns;
  float x[kPack] = {}, y[kPack] = {};
  if (call.valid == nullptr || call.valid[row]) {
    read_pack(g + wide, x);
    read_pack(g + wide + columns, y);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      x[i] *= keep(call.dropout_a, at + i);
      y[i] *= keep(call.dropout_b, at + i);
    }
  }
  write_pack(grad_a + at, x);
  write_pack(grad_b + at, y);
}

// ---- norms: a warp has a row, a lane has kChunks packs of it --------------------------------

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

template <class X, class T, class Y, int P, int kChunks>
__global__ void add_norm_kernel(AddNorm call) {
  using R = Row<P, kChunks>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= call.size.rows) return;
  const std::int64_t at = row * R::kColumns;
  R sum;
  sum.read(static_cast<const X*>(call.x) + at);
  if (call.branch != nullptr) {
    R branch;
    branch.read(static_cast<const T*>(call.branch) + at);
    sum.each([&](float& v, int c, int i) {
      v = fmaf(branch.v[c][i], call.factor * keep(call.dropout, at + R::column(c) + i), v);
    });
    sum.write(static_cast<X*>(call.sum) + at);
  }
  const float2 m = moments(sum, call.eps);
  if (threadIdx.x == 0) {
    call.mean[row] = m.x;
    call.rstd[row] = m.y;
  }
  for (const Norm& norm : call.norms)
    if (norm.weight != nullptr)
      write_normed(sum, m, norm.weight, norm.bias, static_cast<Y*>(norm.y) + at);
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

template <class X, class T, class Y, int P, int kChunks, int kNorms>
__global__ void add_norm_back_kernel(AddNorm call, AddNormBack back) {
  using R = Row<P, kChunks>;
  R weights[kNorms], sums[2 * kNorms] = {};
#pragma unroll
  for (int n = 0; n < kNorms; ++n) weights[n].read(call.norms[n].weight);
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
       row < call.size.rows; row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t at = row * R::kColumns;
    const float mean = call.mean[row], rstd = call.rstd[row];
    R normal, grad = {};
    normal.read(static_cast<const X*>(call.branch != nullptr ? call.sum : call.x) + at);
    normal.each([&](float& v, int, int) { v = (v - mean) * rstd; });
#pragma unroll
    for (int n = 0; n < kNorms; ++n) {
      if (call.norms[n].g == nullptr) continue;
      R g;
      g.read(static_cast<const Y*>(call.norms[n].g) + at);
      g.each([&](float& v, int c, int i) {
        sums[2 * n].v[c][i] = fmaf(v, normal.v[c][i], sums[2 * n].v[c][i]);
        sums[2 * n + 1].v[c][i] += v;
        grad.v[c][i] = fmaf(v, weights[n].v[c][i], grad.v[c][i]);
      });
    }
    through_norm(grad, normal, rstd);
    if (back.grad_sum != nullptr) {
      R outer;
      outer.read(static_cast<const X*>(back.grad_sum) + at);
      grad.each([&](float& g, int c, int i) { g += outer.v[c][i]; });
    }
    grad.write(static_cast<X*>(back.grad_x) + at);
    if (back.grad_branch == nullptr) continue;
    grad.each([&](float& g, int c, int i) {
      g *= call.factor * keep(call.dropout, at + R::column(c) + i);
    });
    grad.write(static_cast<T*>(back.grad_branch) + at);
  }
  write_partials(sums, back.partials);
}

template <class T, int P, int kChunks>
__global__ void gate_norm_kernel(Gate call, T* __restrict__ normed) {
  using R = Row<P, kChunks>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= call.size.rows) return;
  R x;
  x.read(static_cast<const T*>(call.h) + (2 * row + 1) * R::kColumns);
  x.each([](float& v, int, int) { v = gelu(v); });
  const float2 m = moments(x, call.eps);
  if (threadIdx.x == 0) {
    call.mean[row] = m.x;
    call.rstd[row] = m.y;
  }
  T* to = normed + row * R::kColumns;
  if (call.valid != nullptr && !call.valid[row]) {
    x = {};
    x.write(to);
  } else {
    write_normed(x, m, call.weight, call.bias, to);
  }
}

template <class T, int P, int kChunks>
__global__ void gate_norm_back_kernel(Gate call, const T* __restrict__ g, T* __restrict__ grad_h,
                                      float* partials) {
  using R = Row<P, kChunks>;
  R weight, sums[2] = {};
  weight.read(call.weight);
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
       row < call.size.rows; row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t wide = (2 * row + 1) * R::kColumns;
    R grad = {};
    if (call.valid == nullptr || call.valid[row]) {
      const float mean = call.mean[row], rstd = call.rstd[row];
      R h, normal;
      h.read(static_cast<const T*>(call.h) + wide);
      grad.read(g + row * R::kColumns);
      normal = h;
      normal.each([&](float& v, int, int) { v = (gelu(v) - mean) * rstd; });
      grad.each([&](float& v, int c, int i) {
        sums[0].v[c][i] = fmaf(v, normal.v[c][i], sums[0].v[c][i]);
        sums[1].v[c][i] += v;
        v *= weight.v[c][i];
      });
      through_norm(grad, normal, rstd);
      grad.each([&](float& v, int c, int i) { v *= gelu_slope(h.v[c][i]); });
    }
    grad.write(grad_h + wide);
  }
  write_partials(sums, partials);
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

unsigned walkers(const Matrix& size) {
  return std::min<unsigned>(parts(size.rows, kWarps), kPartialBlocks);
}

unsigned packs(const Matrix& size) { return parts(size.rows * size.columns, 256 * kPack); }

template <class T>
T* as(void* pointer) {
  return static_cast<T*>(pointer);
}
template <class T>
const T* as(const void* pointer) {
  return static_cast<const T*>(pointer);
}

}  // namespace

std::int64_t partial_floats(int sums, std::int64_t columns) {
  return sums * kPartialBlocks * columns;
}

bool knows_norm_width(std::int64_t columns) {
  for (const std::int64_t known : {128, 256, 384, 512, 768, 1024})
    if (columns == known) return true;
  return false;
}

namespace {

// Calls f with null pointers of the types of x, branch and y.
template <class F>
void with_types(const AddNorm& call, F f) {
  with_type(call.type, [&](auto* branch) {
    float* wide = nullptr;
    if (call.x_type != Number::kFloat)
      f(branch, branch, branch);
    else if (call.y_type == Number::kFloat)
      f(wide, branch, wide);
    else
      f(wide, branch, branch);
  });
}

template <class Pointer>
using Pointed = std::remove_pointer_t<Pointer>;

}  // namespace

void add_norm(const AddNorm& call, Stream stream) {
  const dim3 grid(parts(call.size.rows, kWarps)), block(32, kWarps);
  with_width(call.size.columns, [&](auto pack, auto chunks) {
    with_types(call, [&](auto* x, auto* branch, auto* y) {
      add_norm_kernel<Pointed<decltype(x)>, Pointed<decltype(branch)>, Pointed<decltype(y)>,
                      decltype(pack)::value, decltype(chunks)::value>
          <<<grid, block, 0, stream>>>(call);
    });
  });
  check_launch("add_norm");
}

void add_norm_back(const AddNorm& call, const AddNormBack& back, Stream stream) {
  const dim3 grid(walkers(call.size)), block(32, kWarps);
  const int norms = call.norms[1].weight != nullptr ? 2 : 1;
  with_width(call.size.columns, [&](auto pack, auto chunks) {
    with_types(call, [&](auto* x, auto* branch, auto* y) {
      using X = Pointed<decltype(x)>;
      using T = Pointed<decltype(branch)>;
      using Y = Pointed<decltype(y)>;
      constexpr int kP = decltype(pack)::value, kC = decltype(chunks)::value;
      if (norms == 1)
        add_norm_back_kernel<X, T, Y, kP, kC, 1><<<grid, block, 0, stream>>>(call, back);
      else
        add_norm_back_kernel<X, T, Y, kP, kC, 2><<<grid, block, 0, stream>>>(call, back);
    });
  });
  launch_finish(back.partials, back.grad_parameters, 2 * norms, static_cast<int>(grid.x),
                call.size.columns, stream);
  check_launch("add_norm_back");
}

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

void gate_norm(const Gate& call, void* normed, Stream stream) {
  const dim3 grid(parts(call.size.rows, kWarps)), block(32, kWarps);
  with_width(call.size.columns, [&](auto pack, auto chunks) {
    with_type(call.type, [&](auto* pointer) {
      using T = std::remove_pointer_t<decltype(pointer)>;
      gate_norm_kernel<T, decltype(pack)::value, decltype(chunks)::value>
          <<<grid, block, 0, stream>>>(call, as<T>(normed));
    });
  });
  check_launch("gate_norm");
}

void gate_norm_back(const Gate& call, const void* g, void* grad_h, float* grad_parameters,
                    float* partials, Stream stream) {
  const dim3 grid(walkers(call.size)), block(32, kWarps);
  with_width(call.size.columns, [&](auto pack, auto chunks) {
    with_type(call.type, [&](auto* pointer) {
      using T = std::remove_pointer_t<decltype(pointer)>;
      gate_norm_back_kernel<T, decltype(pack)::value, decltype(chunks)::value>
          <<<grid, block, 0, stream>>>(call, as<T>(g), as<T>(grad_h), partials);
    });
  });
  launch_finish(partials, grad_parameters, 2, static_cast<int>(grid.x), call.size.columns, stream);
  check_launch("gate_norm_back");
}

void gate_multiply(const Gate& call, const void* gate, void* y, Stream stream) {
  with_type(call.type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    gate_multiply_kernel<T>
        <<<packs(call.size), 256, 0, stream>>>(as<T>(call.h), as<T>(gate), call.dropout, as<T>(y),
                                               call.size.rows, static_cast<int>(call.size.columns));
  });
  check_launch("gate_multiply");
}

void gate_multiply_back(const Gate& call, const void* gate, const void* g, void* grad_gate,
                        void* grad_h, Stream stream) {
  with_type(call.type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    gate_multiply_back_kernel<T><<<packs(call.size), 256, 0, stream>>>(
        as<T>(call.h), as<T>(gate), as<T>(g), call.dropout, as<T>(grad_gate), as<T>(grad_h),
        call.size.rows, static_cast<int>(call.size.columns));
  });
  check_launch("gate_multiply_back");
}

void join(const Join& call, const void* a, const void* b, void* joined, Stream stream) {
  with_type(call.type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    join_kernel<T><<<packs(call.size), 256, 0, stream>>>(call, as<T>(a), as<T>(b), as<T>(joined));
  });
  check_launch("join");
}

void join_back(const Join& call, const void* g, void* grad_a, void* grad_b, Stream stream) {
  with_type(call.type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    join_back_kernel<T>
        <<<packs(call.size), 256, 0, stream>>>(call, as<T>(g), as<T>(grad_a), as<T>(grad_b));
  });
  check_launch("join_back");
}

}  // namespace tutti::speech::cuda
