#include "tutti/speech/kernels/log_mel.h"

#include <algorithm>

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kFramesAtOnce = 8;       // of a block, one for each warp
constexpr int kPoints = kFftSize / 2;  // real samples in pairs are complex points
constexpr int kMaxMels = 128, kMaxWeights = 1024;

// Where a point lies: what the lanes of a warp read or write at once lies in different banks.
__device__ inline int place(int i) { return i ^ 5 * (i >> 4 & 3); }

__device__ inline float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__device__ inline float2 operator-(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }
__device__ inline float2 operator*(float2 a, float2 b) {
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

// The sample of an utterance at `at`, mirrored at its ends; 0 where there is none.
__device__ inline float sample_at(const float* x, int at, int length, int margin) {
  if (at < 0) at = -at;
  if (at >= length) at = at < length + margin ? 2 * length - 2 - at : -1;
  return at >= 0 ? x[at] : 0.0F;
}

// One pass of Stockham's FFT by fours over kPoints points: a warp does 64 butterflies, two a lane.
// `done`: points of the transforms that are made already; turns: e^(-2 pi j k / (4 done)) of a lane's k.
__device__ inline void by_fours(const float2* from, float2* to, const float2 (&turns)[2], int done,
                                int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = lane + 32 * half, k = i & (done - 1);
    float2 x[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) x[n] = from[place(i + n * (kPoints / 4))];
    if (done > 1) {
      const float2 once = turns[half], twice = once * once;
      x[1] = x[1] * once;
      x[2] = x[2] * twice;
      x[3] = x[3] * (twice * once);
    }
    const float2 a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = x[1] - x[3];
    const float2 turned = {d.y, -d.x};  // -j d
    const int at = (i - k) * 4 + k;
    to[place(at)] = a + c;
    to[place(at + done)] = b + turned;
    to[place(at + 2 * done)] = a - c;
    to[place(at + 3 * done)] = b - turned;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(32 * kFramesAtOnce, 4)
    log_mel_kernel(LogMelCall call, float* out) {
  __shared__ float2 turns[kPoints + 1];
  __shared__ float window[kFftSize];
  __shared__ float2 points[kFramesAtOnce][2][kPoints];
  __shared__ float weights[kMaxWeights];
  __shared__ LogMelCall::Filter filters[kMaxMels];
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const auto* all_turns = reinterpret_cast<const float2*>(call.turns);
  for (int i = thread; i <= kPoints; i += 32 * kFramesAtOnce) turns[i] = all_turns[i];
  for (int i = thread; i < kFftSize; i += 32 * kFramesAtOnce) window[i] = call.window[i];
  for (int i = thread; i < call.num_weights; i += 32 * kFramesAtOnce) weights[i] = call.weights[i];
  for (int i = thread; i < call.mels; i += 32 * kFramesAtOnce) filters[i] = call.filters[i];
  float2 own[4][2];  // turns of this lane in passes of 1, 4, 16 and 64 points
#pragma unroll
  for (int pass = 0; pass < 4; ++pass)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int done = 1 << 2 * pass;
      own[pass][half] = all_turns[((lane + 32 * half) & (done - 1)) * (kFftSize / 4 / done)];
    }
  __syncthreads();

  const std::int64_t total = call.batch * call.frames;
  for (std::int64_t frame = static_cast<std::int64_t>(blockIdx.x) * kFramesAtOnce + warp;
       frame < total; frame += static_cast<std::int64_t>(gridDim.x) * kFramesAtOnce) {
    const std::int64_t b = frame / call.frames;
    const int t = static_cast<int>(frame % call.frames),
              length = static_cast<int>(min(call.lengths[b], call.samples));
    float* to = out + frame * call.mels;
    // Frames of an utterance end with its samples and the margins around them.
    if (t * call.hop + kFftSize > length + 2 * call.margin) {
      for (int m = lane; m < call.mels; m += 32) to[m] = 0.0F;
      continue;
    }
    const float* x = call.speech + b * call.speech_row;
    const int first = t * call.hop - call.margin;
    float2 *here = points[warp][0], *there = points[warp][1];
#pragma unroll
    for (int n = 0; n < kPoints / 32; ++n) {
      const int i = lane + 32 * n;
      here[place(i)] = {window[2 * i] * sample_at(x, first + 2 * i, length, call.margin),
                        window[2 * i + 1] * sample_at(x, first + 2 * i + 1, length, call.margin)};
    }
    __syncwarp();
    by_fours(here, there, own[0], 1, lane);
    by_fours(there, here, own[1], 4, lane);
    by_fours(here, there, own[2], 16, lane);
    by_fours(there, here, own[3], 64, lane);
    // Even and odd samples apart, then together: bins 0 .. kPoints of the real transform.
    auto* power = reinterpret_cast<float*>(there);
    for (int k = lane; k <= kPoints; k += 32) {
      const float2 z = here[place(k & (kPoints - 1))],
                   w = here[place((kPoints - k) & (kPoints - 1))];
      const float2 even = {0.5F * (z.x + w.x), 0.5F * (z.y - w.y)};
      const float2 odd = {0.5F * (z.y + w.y), 0.5F * (w.x - z.x)};
      const float2 bin = even + odd * turns[k];
      power[k] = bin.x * bin.x + bin.y * bin.y;
    }
    __syncwarp();
    for (int m = lane; m < call.mels; m += 32) {
      const LogMelCall::Filter filter = filters[m];
      float sum = 0;
      for (int i = 0; i < filter.count; ++i)
        sum = fmaf(power[filter.first + i], weights[filter.at + i], sum);
      to[m] = logf(fmaxf(sum, call.floor));
    }
    __syncwarp();  // the next frame is written where this one was
  }
}

}  // namespace

bool knows_mel_filters(int mels, int num_weights) {
  return mels <= kMaxMels && num_weights <= kMaxWeights;
}

void log_mel(const LogMelCall& call, float* out, Stream stream) {
  constexpr unsigned kMostBlocks = 132 * 4;  // a walk over frames reads the tables once
  const unsigned blocks = std::min(parts(call.batch * call.frames, kFramesAtOnce), kMostBlocks);
  if (blocks == 0) return;
  log_mel_kernel<<<blocks, dim3(32, kFramesAtOnce), 0, stream>>>(call, out);
  check_launch("log_mel");
}

}  // namespace tutti::speech::cuda
