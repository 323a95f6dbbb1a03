#include "tutti/speech/kernels/ctc.h"

#include <algorithm>

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kFrameThreads = 128;  // of a block that serves one frame
constexpr int kFrameWarps = kFrameThreads / 32;

// The sizes a kernel needs, and where things lie.
struct Layout {
  int frames, vocab, labels, batch;
  std::int64_t label_row;

  __device__ std::int64_t frame(int b, int t) const {
    return static_cast<std::int64_t>(b) * frames + t;
  }
  __device__ std::int64_t emissions(int b, int t) const { return frame(b, t) * (labels + 1); }
  __device__ std::int64_t states(int b, int t) const { return frame(b, t) * (2 * labels + 1); }
  __device__ int num_frames(const CtcTexts& texts, int b) const {
    return static_cast<int>(texts.lengths[b]);
  }
  __device__ int num_labels(const CtcTexts& texts, int b) const {
    return static_cast<int>(texts.lengths[batch + b]);
  }
  // Kept inside the vocabulary: a wrong label must not become a wrong address.
  __device__ int label(const CtcTexts& texts, int b, int n) const {
    const std::int64_t value = texts.labels[b * label_row + n];
    return value < 0 ? 0 : value < vocab ? static_cast<int>(value) : vocab - 1;
  }
};

// What exponents are taken relative to: not -inf, which would leave nothing of -inf - (-inf).
__device__ float finite_base(float top) { return top == -INFINITY ? 0.0F : top; }

// One block per frame; P logits at once.
template <class T, int P>
__global__ void frames_kernel(const T* __restrict__ logits, CtcTexts texts, CtcState state,
                              Layout layout) {
  const int t = blockIdx.x, b = blockIdx.y;
  if (t >= layout.num_frames(texts, b)) return;
  const T* row = logits + layout.frame(b, t) * layout.vocab;
  float top = -INFINITY, sum = 0;
  for (int v = threadIdx.x * P; v < layout.vocab; v += kFrameThreads * P) {
    float values[P];
    read_pack<P>(row + v, values);
    float higher = top;
#pragma unroll
    for (int i = 0; i < P; ++i) higher = fmaxf(higher, values[i]);
    const float base = finite_base(higher);
    sum *= expf(top - base);
#pragma unroll
    for (int i = 0; i < P; ++i) sum += expf(values[i] - base);
    top = higher;
  }
  __shared__ float tops[kFrameWarps], sums[kFrameWarps];
  const float warp_top = warp_max(top);
  const float warp_total = warp_sum(sum * expf(top - finite_base(warp_top)));
  if (threadIdx.x % 32 == 0) {
    tops[threadIdx.x / 32] = warp_top;
    sums[threadIdx.x / 32] = warp_total;
  }
  __syncthreads();
  top = tops[0];
#pragma unroll
  for (int i = 1; i < kFrameWarps; ++i) top = fmaxf(top, tops[i]);
  const float base = finite_base(top);
  sum = 0;
#pragma unroll
  for (int i = 0; i < kFrameWarps; ++i) sum += sums[i] * expf(tops[i] - base);
  const float log_sum = base + logf(sum);
  if (threadIdx.x == 0) state.log_sums[layout.frame(b, t)] = log_sum;
  float* emissions = state.emissions + layout.emissions(b, t);
  const int labels = layout.num_labels(texts, b);
  for (int n = threadIdx.x; n <= labels; n += kFrameThreads)
    emissions[n] = to_float(row[n == 0 ? 0 : layout.label(texts, b, n - 1)]) - log_sum;
}

// log(e^a + e^b + e^c). Thousands of frames add up, so sums are double; what is left of the
// exponents is small, and float will do. Passes on what is not a number.
__device__ double log_add(double a, double b, double c) {
  double top = a > b ? a : b;
  top = top > c ? top : c;
  if (top == -INFINITY) return a + b + c;
  return top + static_cast<double>(logf(expf(static_cast<float>(a - top)) +
                                        expf(static_cast<float>(b - top)) +
                                        expf(static_cast<float>(c - top))));
}

// One block per utterance and direction. Backwards is the same recursion over the text and the
// frames in reverse: state j of this direction is state `states - 1 - j` of the other.
__global__ void recursions_kernel(CtcTexts texts, CtcState state, bool zero_infinity, float* losses,
                                  Layout layout) {
  extern __shared__ double rows[];
  const int b = blockIdx.x, num_threads = blockDim.x, thread = threadIdx.x;
  const bool reverse = blockIdx.y == 1;
  const int frames = layout.num_frames(texts, b), labels = layout.num_labels(texts, b);
  const int states = 2 * labels + 1, max_states = 2 * layout.labels + 1;
  int* text = reinterpret_cast<int*>(rows + 2 * max_states);
  auto* may_skip = reinterpret_cast<unsigned char*>(text + layout.labels);
  for (int n = thread; n < labels; n += num_threads)
    text[n] = layout.label(texts, b, reverse ? labels - 1 - n : n);
  __syncthreads();
  // From one label straight to the next, past the blank between them, only if they differ.
  for (int j = thread; j < states; j += num_threads)
    may_skip[j] = j % 2 == 1 && j > 1 && text[j / 2] != text[j / 2 - 1];
  if (reverse) {
    std::int32_t* first = state.links + static_cast<std::int64_t>(b) * layout.labels;
    std::int32_t* next = first + static_cast<std::int64_t>(layout.batch) * layout.labels;
    for (int n = thread; n < labels; n += num_threads) {
      // text[labels - 1 - n] is label n.
      const int label = text[labels - 1 - n];
      int earliest = 0, following = n + 1;
      while (text[labels - 1 - earliest] != label) ++earliest;
      while (following < labels && text[labels - 1 - following] != label) ++following;
      first[n] = earliest;
      next[n] = following < labels ? following : -1;
    }
  }
  const auto emission = [&](int step, int j) {
    const int t = reverse ? frames - 1 - step : step, s = reverse ? states - 1 - j : j;
    return state.emissions[layout.emissions(b, t) + (s % 2 == 0 ? 0 : s / 2 + 1)];
  };
  double* out = reverse ? state.beta : state.alpha;
  const auto keep = [&](int step, int j, double value) {
    if (out == nullptr) return;
    const int t = reverse ? frames - 1 - step : step, s = reverse ? states - 1 - j : j;
    out[layout.states(b, t) + s] = value;
  };

  double *now = rows, *before = rows + max_states;
  if (frames > 0) {
    for (int j = thread; j < states; j += num_threads) {
      now[j] = j < 2 ? static_cast<double>(emission(0, j)) : -INFINITY;
      keep(0, j, now[j]);
    }
  }
  // The emission of the next frame is on its way while this one waits for its neighbours.
  float ahead = frames > 1 && thread < states ? emission(1, thread) : 0.0F;
  for (int step = 1; step < frames; ++step) {
    __syncthreads();
    double* const swap = now;
    now = before;
    before = swap;
    const float mine = ahead;
    if (step + 1 < frames && thread < states) ahead = emission(step + 1, thread);
    for (int j = thread; j < states; j += num_threads) {
      const double value = log_add(before[j], j > 0 ? before[j - 1] : -INFINITY,
                                   may_skip[j] != 0 ? before[j - 2] : -INFINITY) +
                           static_cast<double>(j == thread ? mine : emission(step, j));
      now[j] = value;
      keep(step, j, value);
    }
  }
  __syncthreads();
  if (reverse || thread != 0) return;
  double log_prob = labels == 0 ? 0 : -INFINITY;  // of no frames at all
  if (frames > 0)
    log_prob = labels == 0 ? now[0] : log_add(now[states - 1], now[states - 2], -INFINITY);
  state.log_probs[b] = log_prob;
  losses[b] = zero_infinity && log_prob == -INFINITY ? 0.0F : static_cast<float>(-log_prob);
}

// One block per frame. Every logit gets its probability; then those of the text are written again,
// with their shares of the alignments taken off. Both may lie in the same place.
template <class T, int P>
__global__ void gradient_kernel(const T* logits, CtcTexts texts, CtcState state, bool zero_infinity,
                                const float* __restrict__ grad_losses, T* grad_logits,
                                Layout layout) {
  const int t = blockIdx.x, b = blockIdx.y, thread = threadIdx.x;
  const double log_prob = state.log_probs[b];
  const std::int64_t offset = layout.frame(b, t) * layout.vocab;
  const T* row = logits + offset;
  T* grad = grad_logits + offset;
  if (t >= layout.num_frames(texts, b) || (zero_infinity && log_prob == -INFINITY)) {
    constexpr float kZeros[P] = {};
    for (int v = thread * P; v < layout.vocab; v += kFrameThreads * P)
      write_pack<P>(grad + v, kZeros);
    return;
  }
  const float scale = grad_losses[b], log_sum = state.log_sums[layout.frame(b, t)];
  for (int v = thread * P; v < layout.vocab; v += kFrameThreads * P) {
    float values[P];
    read_pack<P>(row + v, values);
#pragma unroll
    for (int i = 0; i < P; ++i) values[i] = expf(values[i] - log_sum) * scale;
    write_pack<P>(grad + v, values);
  }
  __syncthreads();

  const float* emissions = state.emissions + layout.emissions(b, t);
  const double* alpha = state.alpha + layout.states(b, t);
  const double* beta = state.beta + layout.states(b, t);
  // The share of the alignments that are in state s now; its emission is in both halves.
  const auto share = [&](int s, float emission) {
    const double both = alpha[s] + beta[s];
    if (both == -INFINITY) return 0.0F;
    return expf(static_cast<float>(both - static_cast<double>(emission) - log_prob));
  };
  const int labels = layout.num_labels(texts, b);
  const std::int32_t* first = state.links + static_cast<std::int64_t>(b) * layout.labels;
  const std::int32_t* next = first + static_cast<std::int64_t>(layout.batch) * layout.labels;
  for (int n = thread; n < labels; n += kFrameThreads) {
    if (first[n] != n) continue;  // another thread writes this label
    float sum = 0;
    for (int m = n; m >= 0; m = next[m]) sum += share(2 * m + 1, emissions[n + 1]);
    grad[layout.label(texts, b, n)] = from_float<T>((expf(emissions[n + 1]) - sum) * scale);
  }
  if (thread >= 32) return;
  float blank = 0;
  for (int n = thread; n <= labels; n += 32) blank += share(2 * n, emissions[0]);
  blank = warp_sum(blank);
  if (thread == 0) grad[0] = from_float<T>((expf(emissions[0]) - blank) * scale);
}

Layout layout_of(const CtcSize& size) {
  return {.frames = static_cast<int>(size.frames),
          .vocab = static_cast<int>(size.vocab),
          .labels = static_cast<int>(size.labels),
          .batch = static_cast<int>(size.batch),
          .label_row = size.label_row};
}

dim3 frame_grid(const CtcSize& size) {
  return dim3(static_cast<unsigned>(size.frames), static_cast<unsigned>(size.batch));
}

// Calls f(null pointer of the type, pack size): 16 bytes at once where rows allow it.
template <class F>
void with_logits(Number number, std::int64_t vocab, F f) {
  with_type(number, [&](auto* pointer) {
    constexpr int kPack = 16 / sizeof(*pointer);
    if (vocab % kPack == 0)
      f(pointer, std::integral_constant<int, kPack>());
    else
      f(pointer, std::integral_constant<int, 1>());
  });
}

}  // namespace

void ctc_frames(Number type, const void* logits, const CtcTexts& texts, const CtcState& state,
                const CtcSize& size, Stream stream) {
  with_logits(type, size.vocab, [&](auto* pointer, auto pack) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    frames_kernel<T, decltype(pack)::value><<<frame_grid(size), kFrameThreads, 0, stream>>>(
        static_cast<const T*>(logits), texts, state, layout_of(size));
  });
  check_launch("ctc_frames");
}

void ctc_recursions(const CtcTexts& texts, const CtcState& state, bool zero_infinity, float* losses,
                    const CtcSize& size, Stream stream) {
  if (size.labels > kMaxCtcLabels)
    throw std::runtime_error("ctc: " + std::to_string(size.labels) + " labels, at most " +
                             std::to_string(kMaxCtcLabels));
  const auto states = static_cast<std::size_t>(size.states());
  const std::size_t bytes =
      2 * sizeof(double) * states + sizeof(int) * static_cast<std::size_t>(size.labels) + states;
  allow_shared(recursions_kernel, bytes);
  const unsigned threads = std::min(1024U, parts(size.states(), 32) * 32);
  const dim3 grid(static_cast<unsigned>(size.batch), state.beta == nullptr ? 1 : 2);
  recursions_kernel<<<grid, threads, bytes, stream>>>(texts, state, zero_infinity, losses,
                                                      layout_of(size));
  check_launch("ctc_recursions");
}

void ctc_gradient(Number type, const void* logits, const CtcTexts& texts, const CtcState& state,
                  bool zero_infinity, const float* grad_losses, void* grad_logits,
                  const CtcSize& size, Stream stream) {
  with_logits(type, size.vocab, [&](auto* pointer, auto pack) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    gradient_kernel<T, decltype(pack)::value><<<frame_grid(size), kFrameThreads, 0, stream>>>(
        static_cast<const T*>(logits), texts, state, zero_infinity, grad_losses,
        static_cast<T*>(grad_logits), layout_of(size));
  });
  check_launch("ctc_gradient");
}

}  // namespace tutti::speech::cuda
