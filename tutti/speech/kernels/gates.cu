#include "tutti/speech/kernels/column_walk.cuh"
#include "tutti/speech/kernels/norm_row.cuh"

namespace tutti::speech::cuda {
namespace {

template <class T>
__global__ void gate_multiply_kernel(const T* __restrict__ h, const T* __restrict__ gate,
                                     Dropout dropout, T* __restrict__ y, std::int64_t rows,
                                     int columns) {
  const std::int64_t at = first_of_pack();
  if (at >= rows * columns) return;
  const Keeper keep(dropout);
  float x[kPack], c[kPack];
  read_pack(h + at + at / columns * columns, x);
  read_pack(gate + at, c);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] = gelu(x[i]) * c[i] * keep(at + i);
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
  const Keeper keep(dropout);
  float x[kPack], c[kPack], gv[kPack];
  read_pack(h + wide, x);
  read_pack(gate + at, c);
  read_pack(g + at, gv);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    gv[i] *= keep(at + i);
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
  const Keeper keep_a(call.dropout_a), keep_b(call.dropout_b);
  float x[kPack] = {}, y[kPack] = {};
  if (call.valid == nullptr || call.valid[row]) {
    read_pack(a + at, x);
    read_pack(b + at, y);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      x[i] *= keep_a(at + i);
      y[i] *= keep_b(at + i);
    }
  }
  write_pack(joined + wide, x);
  write_pack(joined + wide + columns, y);
}

template <class T>
__global__ void join_back_kernel(Join call, const T* __restrict__ g, T* __restrict__ grad_a,
                                 T* __restrict__ grad_b, Sums to) {
  const Keeper keep_a(call.dropout_a), keep_b(call.dropout_b);
  const int columns = static_cast<int>(call.size.columns);
  walk_columns<2, 4>(
      call.size.rows, columns, to,
      [&](std::int64_t row, int column) {
        Packs<2> in;
        read_pack(g + 2 * row * columns + column, in.of[0]);
        read_pack(g + (2 * row + 1) * columns + column, in.of[1]);
        if (call.valid != nullptr && !call.valid[row]) in = {};
        return in;
      },
      [&](Packs<2>& in, std::int64_t row, int column, auto& sums) {
        const std::int64_t at = row * columns + column;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          in.of[0][i] *= keep_a(at + i);
          in.of[1][i] *= keep_b(at + i);
          sums[0][i] += in.of[0][i];
          sums[1][i] += in.of[1][i];
        }
        write_pack(grad_a + at, in.of[0]);
        write_pack(grad_b + at, in.of[1]);
      });
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
__global__ void __launch_bounds__(kWarps * 32, walkers_at_once(Row<P, kChunks>::kColumns, 1))
    gate_norm_back_kernel(Gate call, const T* __restrict__ g, T* __restrict__ grad_h,
                          float* partials) {
  using R = Row<P, kChunks>;
  R sums[2] = {};
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
       row < call.size.rows; row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t wide = (2 * row + 1) * R::kColumns;
    R grad = {};
    if (call.valid == nullptr || call.valid[row]) {
      const float mean = call.mean[row], rstd = call.rstd[row];
      R h, normal, weight;
      weight.read(call.weight);  // again for every row: it stays in the cache, registers are few
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

}  // namespace

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
  const dim3 grid(walkers(call.size, 1)), block(32, kWarps);
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

void join_back(const Join& call, const void* g, void* grad_a, void* grad_b, const Sums& to,
               Stream stream) {
  with_type(call.type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    join_back_kernel<T><<<walk_grid(call.size), dim3(32, kRowsAtOnce), 0, stream>>>(
        call, as<T>(g), as<T>(grad_a), as<T>(grad_b), to);
  });
  check_launch("join_back");
}

}  // namespace tutti::speech::cuda
