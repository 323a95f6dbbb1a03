#include "tutti/speech/kernels/spec_augment.h"

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

// Bicubic convolution weights of torch's interpolate (a = -0.75).
__device__ float cubic_weight(float distance) {
  constexpr float kA = -0.75F;
  const float d = fabsf(distance);
  if (d <= 1) return ((kA + 2) * d - (kA + 3)) * d * d + 1;
  return d < 2 ? ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA : 0.0F;
}

__device__ bool is_hidden(const Stripes& stripes, std::int64_t utterance, int place) {
  for (int i = 0; i < stripes.count; ++i) {
    const std::int64_t at = utterance * stripes.count + i;
    if (stripes.starts[at] <= place && place < stripes.starts[at] + stripes.widths[at]) return true;
  }
  return false;
}

constexpr int kFramesAtOnce = 8;  // of a block, one for each warp

__global__ void augment(SpecAugment call, const float* __restrict__ x, float* __restrict__ y) {
  const int t = static_cast<int>(blockIdx.x * kFramesAtOnce + threadIdx.y),
            frames = static_cast<int>(call.frames), bins = static_cast<int>(call.bins);
  if (t >= frames) return;
  const std::int64_t b = blockIdx.y;
  const float* from = x + b * frames * bins;
  float* to = y + (b * frames + t) * bins;
  const bool hidden = is_hidden(call.across_time, b, t);
  int rows[4] = {t, t, t, t};
  float weights[4] = {1, 0, 0, 0};
  if (call.lengths != nullptr && call.centers[b] != 0 && t < call.lengths[b]) {
    const int length = static_cast<int>(call.lengths[b]),
              center = static_cast<int>(call.centers[b]), warped = static_cast<int>(call.warped[b]);
    // Each frame belongs to the left or the right piece; both are stretched on their own.
    const bool left = t < warped;
    const int begin_out = left ? 0 : warped, begin_in = left ? 0 : center;
    const int size_in = (left ? center : length) - begin_in;
    const int size_out = left ? warped : length - warped;
    const float scale = static_cast<float>(size_in) / static_cast<float>(max(size_out, 1));
    const float source = scale * (static_cast<float>(t - begin_out) + 0.5F) - 0.5F;
    const float base = floorf(source);
#pragma unroll
    for (int tap = 0; tap < 4; ++tap) {
      const int position = min(max(static_cast<int>(base) + tap - 1, 0), size_in - 1);
      rows[tap] = min(max(begin_in + position, 0), frames - 1);
      weights[tap] = cubic_weight(source - base - static_cast<float>(tap - 1));
    }
  }
  for (int f = threadIdx.x; f < bins; f += blockDim.x) {
    float value = 0;
    if (!hidden && !is_hidden(call.across_bins, b, f)) {
#pragma unroll
      for (int tap = 0; tap < 4; ++tap)  // those of a frame that stays where it is weigh nothing
        if (weights[tap] != 0)
          value = fmaf(weights[tap], from[static_cast<std::int64_t>(rows[tap]) * bins + f], value);
    }
    to[f] = value;
  }
}

}  // namespace

void spec_augment(const SpecAugment& call, const float* x, float* y, Stream stream) {
  const dim3 grid(parts(call.frames, kFramesAtOnce), static_cast<unsigned>(call.batch));
  augment<<<grid, dim3(32, kFramesAtOnce), 0, stream>>>(call, x, y);
  check_launch("spec_augment");
}

}  // namespace tutti::speech::cuda
