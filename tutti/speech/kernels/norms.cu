#include "tutti/speech/kernels/norm_row.cuh"

namespace tutti::speech::cuda {
namespace {

// From partials (sums, blocks, columns) to sums (sums, columns).
__global__ void finish_sums(const float* __restrict__ partials, float* __restrict__ sums,
                            int blocks, int columns) {
  __shared__ float shared[8][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  constexpr int kAhead = 6;  // on their way at a time
  if (column < columns)
    for (int b = threadIdx.y; b < blocks; b += kAhead * 8) {
      float v[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int block = min(b + i * 8, blocks - 1);
        v[i] =
            partials[(static_cast<std::int64_t>(blockIdx.y) * blocks + block) * columns + column];
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) sum += b + i * 8 < blocks ? v[i] : 0.0F;
    }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int i = 1; i < 8; ++i) sum += shared[i][threadIdx.x];
  sums[static_cast<std::int64_t>(blockIdx.y) * columns + column] = sum;
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
    const Keeper keep(call.dropout);
    sum.each([&](float& v, int c, int i) {
      v = fmaf(branch.v[c][i], call.factor * keep(at + R::column(c) + i), v);
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

template <class X, class T, class Y, int P, int kChunks, int kNorms>
__global__ void __launch_bounds__(kWarps * 32, walkers_at_once(Row<P, kChunks>::kColumns, kNorms))
    add_norm_back_kernel(AddNorm call, AddNormBack back) {
  using R = Row<P, kChunks>;
  const Keeper keep(call.dropout);
  R weights[kNorms], sums[2 * kNorms + 1] = {};
#pragma unroll
  for (int n = 0; n < kNorms; ++n) weights[n].read(call.norms[n].weight);
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
       row < call.size.rows; row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t at = row * R::kColumns;
    const float mean = call.mean[row], rstd = call.rstd[row];
    R normal, outer = {}, grad = {};
    normal.read(static_cast<const X*>(call.branch != nullptr ? call.sum : call.x) + at);
    if (back.grad_sum != nullptr) outer.read(static_cast<const X*>(back.grad_sum) + at);
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
    grad.each([&](float& g, int c, int i) { g += outer.v[c][i]; });
    grad.write(static_cast<X*>(back.grad_x) + at);
    if (back.grad_branch == nullptr) continue;
    grad.each([&](float& g, int c, int i) {
      g *= call.factor * keep(at + R::column(c) + i);
      sums[2 * kNorms].v[c][i] += g;
    });
    grad.write(static_cast<T*>(back.grad_branch) + at);
  }
  write_partials(sums, back.partials);
}

}  // namespace

void launch_finish(const float* partials, float* sums, int count, int blocks, std::int64_t columns,
                   Stream stream) {
  finish_sums<<<dim3(parts(columns, 32), static_cast<unsigned>(count)), dim3(32, 8), 0, stream>>>(
      partials, sums, blocks, static_cast<int>(columns));
}

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
  const int norms = call.norms[1].weight != nullptr ? 2 : 1;
  const dim3 grid(walkers(call.size, norms)), block(32, kWarps);
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
  launch_finish(back.partials, back.grad_parameters,
                2 * norms + (back.grad_branch != nullptr ? 1 : 0), static_cast<int>(grid.x),
                call.size.columns, stream);
  check_launch("add_norm_back");
}

}  // namespace tutti::speech::cuda
