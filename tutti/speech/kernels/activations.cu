#include "tutti/speech/kernels/column_walk.cuh"

namespace tutti::speech::cuda {
namespace {

template <Curve kCurve>
__device__ float curve_of(float x) {
  if constexpr (kCurve == Curve::kRelu) return fmaxf(x, 0.0F);
  if constexpr (kCurve == Curve::kSwish) return x * sigmoid(x);
  if constexpr (kCurve == Curve::kGelu) return gelu(x);
  return x;
}
template <Curve kCurve>
__device__ float slope_of(float x) {
  if constexpr (kCurve == Curve::kRelu) return x > 0 ? 1.0F : 0.0F;
  if constexpr (kCurve == Curve::kSwish) {
    const float s = sigmoid(x);
    return s * (1.0F + x * (1.0F - s));
  }
  if constexpr (kCurve == Curve::kGelu) return gelu_slope(x);
  return 1.0F;
}

// Calls f with the curve as an integral constant.
template <class F>
void with_curve(Curve curve, F f) {
  using std::integral_constant;
  switch (curve) {
    case Curve::kRelu:
      return f(integral_constant<Curve, Curve::kRelu>());
    case Curve::kSwish:
      return f(integral_constant<Curve, Curve::kSwish>());
    case Curve::kGelu:
      return f(integral_constant<Curve, Curve::kGelu>());
    case Curve::kIdentity:
      return f(integral_constant<Curve, Curve::kIdentity>());
  }
}

template <class T>
__global__ void column_sums_kernel(const T* __restrict__ g, Sums to, std::int64_t rows,
                                   int columns) {
  walk_columns<1, 4>(
      rows, columns, to,
      [&](std::int64_t row, int column) {
        Packs<1> in;
        read_pack(g + row * columns + column, in.of[0]);
        return in;
      },
      [&](const Packs<1>& in, std::int64_t, int, auto& sums) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) sums[0][i] += in.of[0][i];
      });
}

template <class T, Curve kCurve>
__global__ void __launch_bounds__(32 * kRowsAtOnce, 4)
    activate_back_kernel(const T* __restrict__ g, const T* __restrict__ h, Dropout dropout,
                         T* __restrict__ grad_h, Sums to, std::int64_t rows, int columns) {
  const Keeper keep(dropout);
  walk_columns<1, 2>(
      rows, columns, to,
      [&](std::int64_t row, int column) {
        Packs<2> in;
        read_pack(g + row * columns + column, in.of[0]);
        read_pack(h + row * columns + column, in.of[1]);
        return in;
      },
      [&](Packs<2>& in, std::int64_t row, int column, auto& sums) {
        const std::int64_t at = row * columns + column;
        float(&v)[kPack] = in.of[0];
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          v[i] *= keep(at + i) * slope_of<kCurve>(in.of[1][i]);
          sums[0][i] += v[i];
        }
        write_pack(grad_h + at, v);
      });
}

template <class T>
__global__ void queries_back_kernel(const T* __restrict__ grad_with_u,
                                    const T* __restrict__ grad_with_v, T* __restrict__ grad_q,
                                    Sums to, std::int64_t rows, int columns, int head_size,
                                    float scale) {
  walk_columns<2, 4>(
      rows, columns, to,
      [&](std::int64_t row, int column) {
        const int head = column / head_size, d = column % head_size;
        Packs<2> in;
        read_pack(grad_with_u + row * columns + column, in.of[0]);
        read_pack(grad_with_v + (head * rows + row) * head_size + d, in.of[1]);
        return in;
      },
      [&](Packs<2>& in, std::int64_t row, int column, auto& sums) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float through_v = in.of[1][i] * scale;
          sums[0][i] += in.of[0][i];
          sums[1][i] += through_v;
          in.of[0][i] += through_v;
        }
        write_pack(grad_q + row * columns + column, in.of[0]);
      });
}

template <class T, Curve kCurve>
__global__ void activate_kernel(const T* __restrict__ h, Dropout dropout, T* __restrict__ y,
                                std::int64_t count) {
  const std::int64_t at = first_of_pack();
  if (at >= count) return;
  const Keeper keep(dropout);
  float v[kPack];
  read_pack(h + at, v);
#pragma unroll
  for (int i = 0; i < kPack; ++i) v[i] = curve_of<kCurve>(v[i]) * keep(at + i);
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
    with_curve(curve, [&](auto kind) {
      activate_kernel<T, decltype(kind)::value>
          <<<packs(size), 256, 0, stream>>>(as<T>(h), dropout, as<T>(y), size.rows * size.columns);
    });
  });
  check_launch("activate");
}

void activate_back(Number type, const void* g, const void* h, Curve curve, const Dropout& dropout,
                   void* grad_h, const Sums& to, const Matrix& size, Stream stream) {
  const dim3 grid = walk_grid(size);
  with_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    with_curve(curve, [&](auto kind) {
      activate_back_kernel<T, decltype(kind)::value><<<grid, dim3(32, kRowsAtOnce), 0, stream>>>(
          as<T>(g), as<T>(h), dropout, as<T>(grad_h), to, size.rows,
          static_cast<int>(size.columns));
    });
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
