// Log-softmax of few long rows: eight blocks for each, which exchange their sums.
#include "tutti/speech/kernels/cluster.cuh"
#include "tutti/speech/kernels/few_rows.h"

namespace tutti::speech::cuda {
namespace {

constexpr int kBlocks = 8, kWarps = 16, kThreads = kWarps * 32;
constexpr int kHeld = 16;  // columns of a thread
[[maybe_unused]] constexpr int kParts = kBlocks * kWarps;

// The highest of some numbers, and the sum of their exponentials relative to it.
struct Sum {
  float top, total;
  // 0 of a part that has no numbers.
  __device__ float seen_from(float higher) const {
    return top == -INFINITY ? 0.0F : total * expf(top - higher);
  }
};

[[maybe_unused]] __device__ inline Sum joined_by_warp(const Sum& mine) {
  const float top = warp_max(mine.top);
  return {top, warp_sum(mine.seen_from(top))};
}

__global__ void __launch_bounds__(kThreads) log_softmax_kernel(float* x, int columns) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ Sum warps[kWarps], parts[kParts];
  const int row = blockIdx.x / kBlocks, rank = blockIdx.x % kBlocks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = rank * kThreads + static_cast<int>(threadIdx.x), step = kBlocks * kThreads;
  float* mine = x + static_cast<std::int64_t>(row) * columns;
  cluster_arrive();
  let_next_begin();
  wait_for_previous();
  float held[kHeld];
  Sum sum{-INFINITY, 0};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = first + i * step;
    held[i] = column < columns ? mine[column] : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) sum.top = fmaxf(sum.top, held[i]);
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (held[i] != -INFINITY) sum.total += expf(held[i] - sum.top);
  sum = joined_by_warp(sum);
  if (lane == 0) warps[warp] = sum;
  __syncthreads();
  cluster_wait();  // all have begun
  if (threadIdx.x < kParts)
    *in_block(parts + rank * kWarps + threadIdx.x % kWarps, threadIdx.x / kWarps) =
        warps[threadIdx.x % kWarps];
  cluster_sync();  // nobody writes into another block after this
  sum = parts[lane];
#pragma unroll
  for (int i = 32; i < kParts; i += 32) {
    const Sum other = parts[i + lane];
    const float top = fmaxf(sum.top, other.top);
    sum = {top, sum.seen_from(top) + other.seen_from(top)};
  }
  sum = joined_by_warp(sum);
  const float log_sum = sum.top + logf(sum.total);
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (const int column = first + i * step; column < columns) mine[column] = held[i] - log_sum;
#endif
}

}  // namespace

bool can_log_softmax_rows(std::int64_t columns) {
  if (columns > kHeld * kBlocks * kThreads) return false;
  return can_cluster(log_softmax_kernel, EarlyLaunch(kBlocks, kThreads, 0, nullptr, kBlocks));
}

void log_softmax_rows(float* x, std::int64_t rows, std::int64_t columns, Stream stream) {
  EarlyLaunch(static_cast<unsigned>(rows * kBlocks), kThreads, 0, stream, kBlocks)
      .run(log_softmax_kernel, x, static_cast<int>(columns));
  check_launch("log_softmax_rows");
}

}  // namespace tutti::speech::cuda
