// The kernels as they were, for one comparison.
#include <algorithm>

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kLanes = 32;         // threads along channels
constexpr int kTile = 2 * kLanes;  // channels of a block: two for each thread
constexpr int kRows = 4;           // threads along time
constexpr int kSteps = 16;         // frames of a thread
constexpr int kFrames = kRows * kSteps;
// Of taps in shared memory. A little more than kTile: they are read in rows and written in columns.
constexpr int kTapRow = kTile + 2;

// Copies rows first, first + 1, .. of one utterance and kTile channels to shared memory as they are; 0
// outside. Threads are (kLanes, any). A thread has several loads on their way at a time: what is slow
// here is to wait for memory, not to move bytes.
template <class T>
__device__ void load_tile(const T* x, T* tile, int first, int rows, int frames, int channels,
                          int channel) {
  constexpr int kWide = 16 / sizeof(T), kAcross = kTile / kWide;
  const int thread = threadIdx.y * kLanes + threadIdx.x, threads = kLanes * blockDim.y;
  const auto inside = [&](int t, int c) { return t >= 0 && t < frames && c < channels; };
  if (channels % kWide != 0 || reinterpret_cast<std::uintptr_t>(x) % 16 != 0) {
    for (int i = thread; i < rows * kTile; i += threads) {
      const int t = first + i / kTile, c = channel + i % kTile;
      tile[i] = inside(t, c) ? x[static_cast<std::int64_t>(t) * channels + c] : from_float<T>(0.0F);
    }
    return;
  }
  constexpr int kAhead = 6;
  const int total = rows * kAcross;
  for (int begin = thread; begin < total; begin += kAhead * threads) {
    uint4 values[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = begin + i * threads, t = first + at / kAcross,
                c = channel + at % kAcross * kWide;
      values[i] = make_uint4(0, 0, 0, 0);
      if (at < total && inside(t, c))
        values[i] =
            *reinterpret_cast<const uint4*>(x + static_cast<std::int64_t>(t) * channels + c);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (const int at = begin + i * threads; at < total)
        reinterpret_cast<uint4*>(tile)[at] = values[i];
  }
}

// A thread's two channels of a row of a tile.
template <class T>
__device__ inline float2 pair_of(const T* tile, int row) {
  float both[2];
  read_pack(tile + row * kTile + 2 * threadIdx.x, both);
  return make_float2(both[0], both[1]);
}

__device__ inline void multiply_add(float2& sum, float2 a, float2 b) {
  sum.x = fmaf(a.x, b.x, sum.x);
  sum.y = fmaf(a.y, b.y, sum.y);
}

struct Taps {
  const float* w;     // (C, K)
  const float* bias;  // (C), or null
  bool flip;          // walk the taps backwards: the gradient of the input
  bool residual;      // add x itself
};

// With kKernel > 0 taps and sums live in registers and every frame is read from the tile once;
// with 0 the kernel's size is `size`.
template <class X, class Y, int kKernel>
__global__ void __launch_bounds__(kLanes* kRows, 4)
    convolve(const X* __restrict__ x, Taps given, Y* __restrict__ y, int frames, int channels,
             int size) {
  extern __shared__ __align__(16) float shared[];
  const int kernel = kKernel > 0 ? kKernel : size;
  X* tile = reinterpret_cast<X*>(shared);  // (kFrames + kernel - 1, kTile)
  float* taps =
      reinterpret_cast<float*>(tile + (kFrames + kernel - 1) * kTile);  // (kernel, kTapRow)
  const int first = blockIdx.x * kFrames, channel = blockIdx.y * kTile;
  const std::int64_t offset = static_cast<std::int64_t>(blockIdx.z) * frames * channels;
  load_tile(x + offset, tile, first - (kernel - 1) / 2, kFrames + kernel - 1, frames, channels,
            channel);
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (int i = thread; i < kernel * kTile; i += kLanes * kRows) {
    const int k = i % kernel, c = i / kernel;
    const float w = channel + c < channels ? given.w[channel * kernel + i] : 0.0F;
    taps[(given.flip ? kernel - 1 - k : k) * kTapRow + c] =
        given.residual && k == (kernel - 1) / 2 ? w + 1.0F : w;
  }
  __syncthreads();

  float2 sums[kSteps];
  const int mine = 2 * threadIdx.x, begin = threadIdx.y * kSteps;
  float2 start = make_float2(0, 0);
  if (given.bias != nullptr) {
    if (channel + mine < channels) start.x = given.bias[channel + mine];
    if (channel + mine + 1 < channels) start.y = given.bias[channel + mine + 1];
  }
#pragma unroll
  for (int r = 0; r < kSteps; ++r) sums[r] = start;
  const auto tap_of = [&](int k) {
    return *reinterpret_cast<const float2*>(taps + k * kTapRow + mine);
  };
  if constexpr (kKernel > 0) {
    float2 tap[kKernel];
#pragma unroll
    for (int k = 0; k < kKernel; ++k) tap[k] = tap_of(k);
#pragma unroll
    for (int i = 0; i < kSteps + kKernel - 1; ++i) {
      const float2 v = pair_of(tile, begin + i);
#pragma unroll
      for (int r = 0; r < kSteps; ++r)
        if (i - r >= 0 && i - r < kKernel) multiply_add(sums[r], tap[i - r], v);
    }
  } else {
    for (int k = 0; k < kernel; ++k) {
      const float2 tap = tap_of(k);
#pragma unroll
      for (int r = 0; r < kSteps; ++r) multiply_add(sums[r], tap, pair_of(tile, begin + r + k));
    }
  }
#pragma unroll
  for (int r = 0; r < kSteps; ++r) {
    const int t = first + begin + r, c = channel + mine;
    if (t >= frames || c >= channels) break;
    Y* out = y + offset + static_cast<std::int64_t>(t) * channels + c;
    if (channels % 2 == 0) {
      const float both[2] = {sums[r].x, sums[r].y};
      write_pack(out, both);
    } else {
      out[0] = from_float<Y>(sums[r].x);
      if (c + 1 < channels) out[1] = from_float<Y>(sums[r].y);
    }
  }
}

constexpr int kTapGroup = 8;  // taps of a thread, and frames it takes at a time
constexpr int kMaxTaps = 64;
constexpr int kChunk = 64;  // frames between two loads

// One block sums over a part of the batch for kTile channels; its sums go to partials (gridDim.y,
// kernel + 1, channels), those of the bias last. Thread row y has taps 8y .. 8y+7; of every frame
// of g and x it takes it uses each eight times.
template <class X, class G>
__global__ void correlate(const X* __restrict__ x, const G* __restrict__ g, float* partials,
                          int batch, int frames, int channels, int kernel) {
  extern __shared__ __align__(16) float shared[];
  G* gs = reinterpret_cast<G*>(shared);               // (kChunk, kTile)
  X* xs = reinterpret_cast<X*>(gs + kChunk * kTile);  // (kChunk + kTapGroup * blockDim.y, kTile)
  const int channel = blockIdx.x * kTile, mine = 2 * threadIdx.x;
  const int first_tap = threadIdx.y * kTapGroup;
  const int chunks = (frames + kChunk - 1) / kChunk;
  float2 sums[kTapGroup] = {};
  float2 bias_sum = make_float2(0, 0);
  for (int part = blockIdx.y; part < batch * chunks; part += gridDim.y) {
    const int first = part % chunks * kChunk;
    const std::int64_t offset = static_cast<std::int64_t>(part / chunks) * frames * channels;
    load_tile(g + offset, gs, first, kChunk, frames, channels, channel);
    load_tile(x + offset, xs, first - (kernel - 1) / 2,
              kChunk + kTapGroup * static_cast<int>(blockDim.y), frames, channels, channel);
    __syncthreads();
    float2 window[2 * kTapGroup - 1];
#pragma unroll
    for (int i = 0; i < kTapGroup - 1; ++i) window[i] = pair_of(xs, first_tap + i);
    for (int t = 0; t < kChunk; t += kTapGroup) {
      float2 gv[kTapGroup];
#pragma unroll
      for (int i = 0; i < kTapGroup; ++i) {
        gv[i] = pair_of(gs, t + i);
        window[kTapGroup - 1 + i] = pair_of(xs, t + first_tap + kTapGroup - 1 + i);
      }
#pragma unroll
      for (int i = 0; i < kTapGroup; ++i) {
#pragma unroll
        for (int k = 0; k < kTapGroup; ++k) multiply_add(sums[k], gv[i], window[i + k]);
        if (threadIdx.y == 0) {
          bias_sum.x += gv[i].x;
          bias_sum.y += gv[i].y;
        }
      }
#pragma unroll
      for (int i = 0; i < kTapGroup - 1; ++i) window[i] = window[kTapGroup + i];
    }
    __syncthreads();
  }
  const int c = channel + mine;
  float* mine_of = partials + static_cast<std::int64_t>(blockIdx.y) * (kernel + 1) * channels + c;
  const auto put = [&](int row, float2 sum) {
    if (c < channels) mine_of[row * channels] = sum.x;
    if (c + 1 < channels) mine_of[row * channels + 1] = sum.y;
  };
#pragma unroll
  for (int j = 0; j < kTapGroup; ++j)
    if (first_tap + j < kernel) put(first_tap + j, sums[j]);
  if (threadIdx.y == 0) put(kernel, bias_sum);
}

// Adds up partials in order: grad_w (channels, kernel), grad_bias (channels).
__global__ void finish_correlate(const float* __restrict__ partials, float* __restrict__ grad_w,
                                 float* __restrict__ grad_bias, int blocks, int channels,
                                 int kernel) {
  __shared__ float shared[8][33];
  const int c = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y;
  float sum = 0;
  if (c < channels)
    for (int b = threadIdx.y; b < blocks; b += 8)
      sum += partials[(static_cast<std::int64_t>(b) * (kernel + 1) + row) * channels + c];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  for (int i = 1; i < 8; ++i) sum += shared[i][threadIdx.x];
  if (row < kernel)
    grad_w[c * kernel + row] = sum;
  else
    grad_bias[c] = sum;
}

}  // namespace

void depthwise_conv_before(Number x_type, const void* x, const float* w, const float* bias,
                           ConvVariant variant, Number y_type, void* y, const ConvSize& size,
                           Stream stream) {
  const dim3 grid(parts(size.frames, kFrames), parts(size.channels, kTile),
                  static_cast<unsigned>(size.batch));
  const auto kernel_size = static_cast<std::size_t>(size.kernel);
  const Taps taps{w, bias, variant.flip, variant.residual};
  with_type(x_type, [&](auto* x_pointer) {
    with_type(y_type, [&](auto* y_pointer) {
      using X = std::remove_pointer_t<decltype(x_pointer)>;
      using Y = std::remove_pointer_t<decltype(y_pointer)>;
      const std::size_t bytes =
          sizeof(float) * kTapRow * kernel_size + sizeof(X) * kTile * (kFrames + kernel_size - 1);
      const auto launch = [&](auto* kernel) {
        allow_shared(kernel, bytes);
        kernel<<<grid, dim3(kLanes, kRows), bytes, stream>>>(
            static_cast<const X*>(x), taps, static_cast<Y*>(y), static_cast<int>(size.frames),
            static_cast<int>(size.channels), size.kernel);
      };
      if constexpr (std::is_same_v<X, Y>) {
        if (size.kernel == 31) return launch(convolve<X, Y, 31>);
        if (size.kernel == 15) return launch(convolve<X, Y, 15>);
      }
      launch(convolve<X, Y, 0>);
    });
  });
  check_launch("depthwise_conv");
}

namespace {

// Blocks along the batch: four for every processor of a large GPU, which all run at once, and each
// with as many chunks as the others.
unsigned correlate_blocks(const ConvSize& size) {
  const std::int64_t total = size.batch * parts(size.frames, kChunk);
  const std::int64_t most = std::max<std::int64_t>(528 / parts(size.channels, kTile), 1);
  return parts(total, parts(total, most));
}

}  // namespace

void depthwise_conv_weights_before(Number x_type, const void* x, Number g_type, const void* g,
                                   float* grad_w, float* grad_bias, float* partials,
                                   const ConvSize& size, Stream stream) {
  if (size.kernel > kMaxTaps) throw std::runtime_error("depthwise_conv: kernel over 64");
  const unsigned columns = parts(size.channels, kTile), groups = parts(size.kernel, kTapGroup);
  const dim3 grid(columns, correlate_blocks(size)), block(kLanes, groups);
  const int channels = static_cast<int>(size.channels);
  with_type(x_type, [&](auto* x_pointer) {
    with_type(g_type, [&](auto* g_pointer) {
      using X = std::remove_pointer_t<decltype(x_pointer)>;
      using G = std::remove_pointer_t<decltype(g_pointer)>;
      const std::size_t bytes =
          kTile * (sizeof(G) * kChunk + sizeof(X) * (kChunk + kTapGroup * groups));
      allow_shared(correlate<X, G>, bytes);
      correlate<X, G><<<grid, block, bytes, stream>>>(
          static_cast<const X*>(x), static_cast<const G*>(g), partials,
          static_cast<int>(size.batch), static_cast<int>(size.frames), channels, size.kernel);
    });
  });
  finish_correlate<<<dim3(parts(size.channels, 32), static_cast<unsigned>(size.kernel + 1)),
                     dim3(32, 8), 0, stream>>>(partials, grad_w, grad_bias,
                                               static_cast<int>(grid.y), channels, size.kernel);
  check_launch("depthwise_conv_weights");
}

}  // namespace tutti::speech::cuda
