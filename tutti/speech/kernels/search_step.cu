#include "tutti/speech/kernels/search_step.h"

#include <climits>

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kMostWarps = 32, kKeepThreads = 128;
constexpr std::int64_t kLargeVocab = 8192;
constexpr unsigned kAllLanes = 0xffffffffU;

template <class T>
struct Best {
  T value;
  int place;
};
template <class T>
__device__ Best<T> nothing() {
  return {static_cast<T>(-INFINITY), INT_MAX};
}
template <class T>
__device__ Best<T> known(T value, int place) {
  return {value == value ? value : static_cast<T>(-INFINITY), place};
}
template <class T>
__device__ bool is_better(const Best<T>& a, const Best<T>& b) {
  return a.value > b.value || (a.value == b.value && a.place < b.place);
}

template <class T>
__device__ Best<T> best_of_warp(Best<T> best) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Best<T> other{__shfl_xor_sync(kAllLanes, best.value, step),
                        __shfl_xor_sync(kAllLanes, best.place, step)};
    if (is_better(other, best)) best = other;
  }
  return best;
}

// For all threads. `slots` is shared, one for each warp; the next call has others, so that one barrier
// is enough.
template <class T>
__device__ Best<T> best_of_block(const Best<T>& own, Best<T>* slots) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const Best<T> of_warp = best_of_warp(own);
  if (lane == 0) slots[warp] = of_warp;
  __syncthreads();
  return best_of_warp(lane < warps ? slots[lane] : nothing<T>());
}

// The best of a thread's part of a row, best first: rarely are more of them wanted, and then it reads
// its part again.
struct Held {
  static constexpr int kCount = 4;
  Best<float> at[kCount];

  // Those that come after `bound`.
  __device__ void read(const float* __restrict__ row, int vocab, const Best<float>& bound) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) at[i] = nothing<float>();
#pragma unroll 4
    for (int v = threadIdx.x; v < vocab; v += blockDim.x) {
      const Best<float> next = known(row[v], v);
      if (is_better(next, at[kCount - 1]) && is_better(bound, next)) insert(next);
    }
  }
  __device__ void insert(const Best<float>& next) {
    at[kCount - 1] = next;
#pragma unroll
    for (int i = kCount - 1; i > 0; --i) {
      if (!is_better(at[i], at[i - 1])) continue;
      const Best<float> better = at[i];
      at[i] = at[i - 1];
      at[i - 1] = better;
    }
  }
  __device__ void drop_first() {
#pragma unroll
    for (int i = 1; i < kCount; ++i) at[i - 1] = at[i];
    at[kCount - 1] = nothing<float>();
  }
  __device__ bool is_empty() const { return at[0].place == INT_MAX; }
};

// A block for each row.
__global__ void __launch_bounds__(32 * kMostWarps) best_tokens_kernel(BestTokens call) {
  __shared__ Best<float> slots[2][kMostWarps];
  const int vocab = static_cast<int>(call.vocab), count = static_cast<int>(call.count);
  const float* row = call.log_probs + blockIdx.x * call.vocab;
  const std::int64_t first = blockIdx.x * (call.count + (call.eos_id >= 0 ? 1 : 0));
  Held held;
  held.read(row, vocab, {INFINITY, -1});
  bool has_eos = false;
  for (int i = 0; i < count; ++i) {
    const Best<float> best = best_of_block(held.at[0], slots[i % 2]);
    has_eos = has_eos || best.place == call.eos_id;
    if (threadIdx.x == 0) {
      call.ids[first + i] = best.place;
      call.values[first + i] = static_cast<double>(best.value);
    }
    if (held.at[0].place != best.place) continue;
    held.drop_first();
    if (held.is_empty()) held.read(row, vocab, best);
  }
  if (call.eos_id < 0 || threadIdx.x > 0) return;
  call.ids[first + count] = call.eos_id;
  call.values[first + count] = has_eos ? -INFINITY : static_cast<double>(row[call.eos_id]);
}

// As torch would, rounded after every operation.
__device__ double total_of(const KeepBest& call, std::int64_t row, std::int64_t candidate) {
  double total = call.score[row];
  if (call.decoder != nullptr)
    total = __dadd_rn(total, __dmul_rn(call.decoder_weight, call.decoder[candidate]));
  if (call.penalty != 0) total = __dadd_rn(total, call.penalty);
  if (call.ctc != nullptr)
    total = __dadd_rn(
        total, __dmul_rn(call.ctc_weight, __dsub_rn(call.ctc[candidate], call.ctc_score[row])));
  return total;
}

// A block for each utterance.
__global__ void __launch_bounds__(kKeepThreads) keep_best_kernel(KeepBest call) {
  extern __shared__ double totals[];  // (W * K), each for one thread alone
  __shared__ Best<double> slots[2][kKeepThreads / 32];
  __shared__ Best<double> kept[kMostBest];
  __shared__ double ended[kMostBest];
  const int beam = static_cast<int>(call.beam), width = static_cast<int>(call.width);
  const int count = beam * width, thread = threadIdx.x;
  const std::int64_t utterance = blockIdx.x;
  const std::int64_t first_row = utterance * call.beam, first_candidate = utterance * count;

  Best<double> own = nothing<double>();
  for (int i = thread; i < count; i += kKeepThreads) {
    const auto next = known(total_of(call, first_row + i / width, first_candidate + i), i);
    totals[i] = next.value;
    if (is_better(next, own)) own = next;
  }
  for (int w = 0; w < beam; ++w) {
    const Best<double> best = best_of_block(own, slots[w % 2]);
    if (own.place != best.place) continue;
    kept[w] = best;
    // Of this thread's others those that come after it.
    own = nothing<double>();
    for (int i = thread; i < count; i += kKeepThreads) {
      const Best<double> next{totals[i], i};
      if (is_better(best, next) && is_better(next, own)) own = next;
    }
  }
  __syncthreads();

  double score = -INFINITY;
  if (thread < beam) {
    const Best<double> best = kept[thread];
    const std::int64_t row = first_row + thread, candidate = first_candidate + best.place;
    const int parent = best.place / width;
    const std::int64_t token = call.candidates[candidate];
    const bool ends = token == call.eos_id || call.max_steps[utterance] - 1 <= call.step;
    const bool counts = ends && call.min_steps[utterance] <= call.step;
    if (!ends) score = best.value;
    ended[thread] = counts ? best.value : -INFINITY;
    call.ended[row] = ended[thread];
    call.tokens[row] = token;
    call.parents[row] = parent;
    call.rows[row] = first_row + parent;
    if (call.decoder != nullptr)
      call.new_decoder_score[row] =
          call.decoder_score[first_row + parent] + call.decoder[candidate];
    if (call.ctc != nullptr) call.new_ctc_score[row] = call.ctc[candidate];
  }
  if (call.best_ended != nullptr) {
    __syncthreads();
    double best_now = -INFINITY;
    for (int w = 0; w < beam; ++w) best_now = fmax(best_now, ended[w]);
    const double best_ended = fmax(best_now, call.best_ended[utterance]);
    if (thread == 0) {
      call.best_now[utterance] = best_now;
      call.new_best_ended[utterance] = best_ended;
    }
    bool is_over = true;
#pragma unroll
    for (const double* earlier : call.earlier) {
      const double best = earlier == nullptr ? -INFINITY : earlier[utterance];
      is_over = is_over && best > -INFINITY && best - best_ended < call.margin;
    }
    if (is_over) score = -INFINITY;
  }
  if (thread < beam) call.new_score[first_row + thread] = score;
}

}  // namespace

void best_tokens(const BestTokens& call, Stream stream) {
  const unsigned threads = call.vocab > kLargeVocab ? 32 * kMostWarps : 8 * 32;
  best_tokens_kernel<<<static_cast<unsigned>(call.rows), threads, 0, stream>>>(call);
  check_launch("best_tokens");
}

void keep_best(const KeepBest& call, Stream stream) {
  const std::size_t bytes = static_cast<std::size_t>(call.beam * call.width) * sizeof(double);
  keep_best_kernel<<<static_cast<unsigned>(call.utterances), kKeepThreads, bytes, stream>>>(call);
  check_launch("keep_best");
}

}  // namespace tutti::speech::cuda
