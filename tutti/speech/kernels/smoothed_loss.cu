#include "tutti/speech/kernels/smoothed_loss.h"

#include <cmath>

#include "tutti/speech/kernels/fused.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kThreads = 256, kBlockWarps = kThreads / 32;

__device__ inline bool counts(const SmoothedLoss& call, std::int64_t row) {
  const std::int64_t utterance = row / call.places, place = row % call.places;
  return place < call.lengths[utterance] &&
         (call.begins == nullptr || place >= call.begins[utterance]);
}

// Of all threads of a block, in a fixed order.
__device__ inline float block_sum(float x) {
  __shared__ float shared[kBlockWarps];
  x = warp_sum(x);
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kBlockWarps; ++i) sum += shared[i];
  return sum;
}

struct Best {
  float value;
  int at;
};
__device__ inline Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}
__device__ inline Best block_best(Best mine) {
  __shared__ Best shared[kBlockWarps];
  for (int step = 16; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(0xffffffffU, mine.value, step),
                     __shfl_xor_sync(0xffffffffU, mine.at, step)};
    mine = better(mine, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  Best best = shared[0];
#pragma unroll
  for (int i = 1; i < kBlockWarps; ++i) best = better(best, shared[i]);
  return best;
}

// Sums of the rows' results, by the block that is done last.
__device__ void add_up(const SmoothedLoss& call, const float* row_results, float* result) {
  float loss = 0, right = 0, counted = 0;
  for (std::int64_t row = threadIdx.x; row < call.rows; row += kThreads) {
    loss += __ldcg(row_results + row);
    const float hit = __ldcg(row_results + call.rows + row);
    right += hit > 0 ? 1.0F : 0.0F;
    counted += hit != 0 ? 1.0F : 0.0F;
  }
  loss = block_sum(loss);
  right = block_sum(right);
  counted = block_sum(counted);
  if (threadIdx.x != 0) return;
  result[0] = loss * *call.scale;
  result[1] = counted > 0 ? right / counted : 0.0F;
}

// A block has one row. Of row_results the first is the row's loss, the second 1, -1 or, where the row
// does not count, 0.
template <class T, int P>
__global__ void __launch_bounds__(kThreads)
    smoothed_loss_kernel(SmoothedLoss call, float* row_results, float* result, unsigned* counter) {
  __shared__ bool is_last;
  const std::int64_t row = blockIdx.x;
  if (counts(call, row)) {
    const T* x = static_cast<const T*>(call.logits) + row * call.classes;
    Best best{-INFINITY, call.classes};
    float all = 0;
    for (int c = threadIdx.x * P; c < call.classes; c += kThreads * P) {
      float v[P];
      read_pack(x + c, v);
#pragma unroll
      for (int i = 0; i < P; ++i) {
        best = better(best, {v[i], c + i});
        all += v[i];
      }
    }
    best = block_best(best);
    float exponentials = 0;
    for (int c = threadIdx.x * P; c < call.classes; c += kThreads * P) {
      float v[P];
      read_pack(x + c, v);
#pragma unroll
      for (int i = 0; i < P; ++i) exponentials += __expf(v[i] - best.value);
    }
    all = block_sum(all);
    exponentials = block_sum(exponentials);
    if (threadIdx.x == 0) {
      const float log_sum = best.value + logf(exponentials);
      const auto target = static_cast<int>(call.targets[row]);
      call.log_sums[row] = log_sum;
      row_results[row] = call.constant - call.right * (to_float(x[target]) - log_sum) -
                         call.other * (all - static_cast<float>(call.classes) * log_sum);
      row_results[call.rows + row] = best.at == target ? 1.0F : -1.0F;
    }
  } else if (threadIdx.x == 0) {
    row_results[row] = row_results[call.rows + row] = 0;
  }
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(counter, 1U) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  add_up(call, row_results, result);
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
}

template <class T, int P>
__global__ void __launch_bounds__(kThreads)
    smoothed_loss_back_kernel(SmoothedLoss call, const float* grad, T* __restrict__ grad_logits) {
  const std::int64_t row = blockIdx.x;
  T* to = grad_logits + row * call.classes;
  if (!counts(call, row)) {
    const float none[P] = {};
    for (int c = threadIdx.x * P; c < call.classes; c += kThreads * P) write_pack(to + c, none);
    return;
  }
  const T* x = static_cast<const T*>(call.logits) + row * call.classes;
  const float log_sum = call.log_sums[row], factor = *grad * *call.scale;
  const float share = call.right + call.other * static_cast<float>(call.classes);
  const auto target = static_cast<int>(call.targets[row]);
  for (int c = threadIdx.x * P; c < call.classes; c += kThreads * P) {
    float v[P];
    read_pack(x + c, v);
#pragma unroll
    for (int i = 0; i < P; ++i)
      v[i] = factor *
             (share * __expf(v[i] - log_sum) - call.other - (c + i == target ? call.right : 0.0F));
    write_pack(to + c, v);
  }
}

// Calls f with a type and with the number of neighbours that a thread reads at once.
template <class F>
void with_kind(const SmoothedLoss& call, F f) {
  with_type(call.type, [&](auto* pointer) {
    if (call.classes % kPack == 0)
      f(pointer, std::integral_constant<int, kPack>());
    else
      f(pointer, std::integral_constant<int, 1>());
  });
}

}  // namespace

void smoothed_loss(const SmoothedLoss& call, float* row_results, float* result, unsigned* counter,
                   Stream stream) {
  with_kind(call, [&](auto* pointer, auto pack) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    smoothed_loss_kernel<T, decltype(pack)::value>
        <<<static_cast<unsigned>(call.rows), kThreads, 0, stream>>>(call, row_results, result,
                                                                    counter);
  });
  check_launch("smoothed_loss");
}

void smoothed_loss_back(const SmoothedLoss& call, const float* grad, void* grad_logits,
                        Stream stream) {
  with_kind(call, [&](auto* pointer, auto pack) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    smoothed_loss_back_kernel<T, decltype(pack)::value>
        <<<static_cast<unsigned>(call.rows), kThreads, 0, stream>>>(call, grad, as<T>(grad_logits));
  });
  check_launch("smoothed_loss_back");
}

}  // namespace tutti::speech::cuda
