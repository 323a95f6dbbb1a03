#include "tutti/speech/kernels/ctc_prefix.h"

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kScoreThreads = 128, kScoreWarps = kScoreThreads / 32;
constexpr int kAdvanceThreads = 256, kAdvanceWarps = kAdvanceThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffU;

// log(e^a + e^b); passes on what is not a number.
__device__ double log_add(double a, double b) {
  const double top = a > b ? a : b, other = a > b ? b : a;
  if (top == -INFINITY) return top;
  return top + log1p(exp(other - top));
}

// What a token in frame t follows: `paths` up to the frame before. Before frame 0 nothing was said,
// which is certain.
__device__ double before(const double* paths, int t, int first_frame) {
  if (t < first_frame) return kCtcLogZero;
  return t == 0 ? 0.0 : paths[t - 1];
}

// A block for each candidate: log of the sum over frames.
__global__ void __launch_bounds__(kScoreThreads)
    scores_kernel(CtcPrefixes prefixes, const std::int64_t* __restrict__ candidates,
                  double* __restrict__ scores) {
  const std::int64_t utterance = blockIdx.z, row = utterance * prefixes.beam + blockIdx.y;
  const std::int64_t place = row * gridDim.x + blockIdx.x;
  const std::int64_t token = candidates[place];
  const int end = static_cast<int>(prefixes.ends[utterance]);
  const double* either = prefixes.either + row * prefixes.frames;
  if (token == prefixes.eos_id || token == prefixes.blank_id) {
    if (threadIdx.x == 0) scores[place] = token == prefixes.eos_id ? either[end] : kCtcLogZero;
    return;
  }
  const double* paths =
      token == prefixes.last_token[row] ? prefixes.blank + row * prefixes.frames : either;
  const float* x = prefixes.log_probs + utterance * prefixes.frames * prefixes.vocab + token;
  const int first_frame = static_cast<int>(prefixes.first_frame);
  double top = -INFINITY, sum = 0;
  // Frames past the end are impossible, which makes a difference to what is impossible anyway: the
  // order in which a search keeps such hypotheses is the CPU's.
  if (threadIdx.x == 0 && end + 1 < prefixes.frames) {
    top = kCtcLogZero;
    sum = static_cast<double>(prefixes.frames - 1 - end);
  }
  for (int t = threadIdx.x; t <= end; t += kScoreThreads) {
    const double value = before(paths, t, first_frame) + static_cast<double>(x[t * prefixes.vocab]);
    if (value > top) {
      sum = sum * exp(top - value) + 1;
      top = value;
    } else if (value != -INFINITY) {
      sum += exp(value - top);
    }
  }
  __shared__ double tops[kScoreWarps], sums[kScoreWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double highest = top;
  for (int step = 16; step > 0; step /= 2)
    highest = fmax(highest, __shfl_xor_sync(kAllLanes, highest, step));
  if (lane == 0) tops[warp] = highest;
  __syncthreads();
  highest = tops[0];
#pragma unroll
  for (int i = 1; i < kScoreWarps; ++i) highest = fmax(highest, tops[i]);
  // Of a thread without frames 0, and of a block without any way 0 rather than no number.
  sum = top == -INFINITY ? sum : sum * exp(top - highest);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int i = 1; i < kScoreWarps; ++i) sum += sums[i];
  scores[place] = highest == -INFINITY ? highest + sum : highest + log(sum);
}

// Some frames of a recurrence r_t = x_t + log(e^r_{t-1} + e^phi_t): r -> log(e^(gain + r) + e^rest).
// Such maps can be joined, so a block scans them.
struct Frames {
  double gain, rest;
};
__device__ Frames no_frames() { return {0.0, -INFINITY}; }
__device__ void add_frame(Frames& frames, double x, double phi) {
  frames.gain += x;
  frames.rest = x + log_add(frames.rest, phi);
}
__device__ Frames joined(const Frames& first, const Frames& second) {
  return {first.gain + second.gain, log_add(second.gain + first.rest, second.rest)};
}
__device__ Frames of_lane_below(const Frames& frames, int distance) {
  return {__shfl_up_sync(kAllLanes, frames.gain, distance),
          __shfl_up_sync(kAllLanes, frames.rest, distance)};
}

// All up to this lane, for the first kLanes of a warp.
template <int kLanes>
__device__ Frames scanned(Frames frames) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const Frames earlier = of_lane_below(frames, step);
    if (lane >= step) frames = joined(earlier, frames);
  }
  return frames;
}

// Where the recurrence, which begins with nothing, stands before the frames of this thread. `totals`
// is shared, one for each warp, and not used by anything before the block's next barrier but one.
__device__ double value_before(const Frames& own, Frames* totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Frames up_to_here = scanned<32>(own);
  if (lane == 31) totals[warp] = up_to_here;
  __syncthreads();
  // Every warp joins the totals for itself, and waits for no other again.
  const Frames warps = scanned<kAdvanceWarps>(lane < kAdvanceWarps ? totals[lane] : no_frames());
  const double of_warps_before = __shfl_sync(kAllLanes, warps.rest, warp > 0 ? warp - 1 : 0);
  Frames in_warp = of_lane_below(up_to_here, 1);
  if (lane == 0) in_warp = no_frames();
  return log_add(in_warp.gain + (warp > 0 ? of_warps_before : -INFINITY), in_warp.rest);
}

// A block for each hypothesis, a piece of its frames for each thread. Two recurrences: of paths that
// end in the token, and of those that end in blank, which follow the former.
__global__ void __launch_bounds__(kAdvanceThreads)
    advance_kernel(CtcPrefixes prefixes, const std::int64_t* __restrict__ parents,
                   const std::int64_t* __restrict__ tokens, double* either, double* blank) {
  __shared__ Frames token_totals[kAdvanceWarps], blank_totals[kAdvanceWarps];
  const std::int64_t utterance = blockIdx.y, row = utterance * prefixes.beam + blockIdx.x;
  const std::int64_t parent = utterance * prefixes.beam + parents[row], token = tokens[row];
  const double* paths = (token == prefixes.last_token[parent] ? prefixes.blank : prefixes.either) +
                        parent * prefixes.frames;
  const float* posteriors = prefixes.log_probs + utterance * prefixes.frames * prefixes.vocab;
  const auto posterior = [&](int t, std::int64_t id) {
    return static_cast<double>(posteriors[t * prefixes.vocab + id]);
  };
  const int first_frame = static_cast<int>(prefixes.first_frame);
  const int count = static_cast<int>(prefixes.ends[utterance]) + 1;
  const int piece = (count + kAdvanceThreads - 1) / kAdvanceThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * piece, count);
  const int end = min(begin + piece, count);
  either += row * prefixes.frames;
  blank += row * prefixes.frames;

  Frames of_token = no_frames();
  for (int t = begin; t < end; ++t)
    add_frame(of_token, posterior(t, token), before(paths, t, first_frame));
  double in_token = value_before(of_token, token_totals);
  // No path ends in a token before there is a frame.
  const double token_before = begin == 0 ? kCtcLogZero : in_token;

  Frames of_blank = no_frames();
  double previous = token_before;
  for (int t = begin; t < end; ++t) {
    add_frame(of_blank, posterior(t, prefixes.blank_id), previous);
    in_token = posterior(t, token) + log_add(in_token, before(paths, t, first_frame));
    either[t] = previous = in_token;  // until it is known what ends in blank
  }
  double in_blank = value_before(of_blank, blank_totals);

  previous = token_before;
  for (int t = begin; t < end; ++t) {
    in_blank = posterior(t, prefixes.blank_id) + log_add(in_blank, previous);
    previous = either[t];
    blank[t] = in_blank;
    either[t] = log_add(previous, in_blank);
  }
}

}  // namespace

void ctc_prefix_scores(const CtcPrefixes& prefixes, const std::int64_t* candidates,
                       std::int64_t count, double* scores, Stream stream) {
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(prefixes.beam),
                  static_cast<unsigned>(prefixes.utterances));
  scores_kernel<<<grid, kScoreThreads, 0, stream>>>(prefixes, candidates, scores);
  check_launch("ctc_prefix_scores");
}

void ctc_prefix_advance(const CtcPrefixes& prefixes, const std::int64_t* parents,
                        const std::int64_t* tokens, double* either, double* blank, Stream stream) {
  const dim3 grid(static_cast<unsigned>(prefixes.beam), static_cast<unsigned>(prefixes.utterances));
  advance_kernel<<<grid, kAdvanceThreads, 0, stream>>>(prefixes, parents, tokens, either, blank);
  check_launch("ctc_prefix_advance");
}

}  // namespace tutti::speech::cuda
