#include <algorithm>

#include "tutti/speech/kernels/tensor_core.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kLanes = 32;         // threads along channels
constexpr int kTile = 2 * kLanes;  // channels of a block: two for each thread
constexpr int kRows = 4;           // threads along time
constexpr int kSteps = 16;         // frames of a thread
constexpr int kFrames = kRows * kSteps;
// Of taps in shared memory. A little more than kTile: they are read in rows and written in columns.
constexpr int kTapRow = kTile + 2;

// A block has kTile channels and takes one part of the batch after the other, kFrames frames of an
// utterance each. While it works on one, the next is on its way: what is slow here is to wait for
// memory.
struct Part {
  int first;            // frame
  std::int64_t offset;  // of the utterance
};

class Parts {
 public:
  __device__ Parts(int batch, int frames, int channels)
      : each_(static_cast<std::int64_t>(frames) * channels),
        in_utterance_((frames + kFrames - 1) / kFrames),
        count_(batch * in_utterance_) {}
  __device__ int count() const { return count_; }
  __device__ Part operator[](int i) const {
    return {i % in_utterance_ * kFrames, i / in_utterance_ * each_};
  }

 private:
  std::int64_t each_;
  int in_utterance_, count_;
};

// Blocks along the batch: four for every processor of a large GPU, which all run at once, and each
// with as many parts as the others.
unsigned blocks_along(const ConvSize& size) {
  const std::int64_t total = size.batch * parts(size.frames, kFrames);
  const std::int64_t most = std::max<std::int64_t>(528 / parts(size.channels, kTile), 1);
  return parts(total, std::max(parts(total, most), 1U));
}

// Rows first, first + 1, .. of one utterance and kTile channels to shared memory as they are; 0
// outside. They have arrived after wait_for_copies() and a barrier. Threads are (kLanes, any).
template <class T>
__device__ void copy_tile(const T* x, T* tile, int first, int rows, int frames, int channels,
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
  // A thread stays in its columns: a step is `down` rows.
  static_assert(kLanes % kAcross == 0);
  const int down = threads / kAcross, c = channel + thread % kAcross * kWide;
  const T* from = x + static_cast<std::int64_t>(first + thread / kAcross) * channels + c;
  for (int row = thread / kAcross; row < rows; row += down, from += down * channels) {
    const bool exists = inside(first + row, c);
    copy_later(tile + (row * kAcross + thread % kAcross) * kWide, exists ? from : x, exists);
  }
}

// A thread's two channels of a row of a tile.
template <class T>
__device__ inline float2 pair_of(const T* tile, int row) {
  float both[2];
  read_pack(tile + row * kTile + 2 * threadIdx.x, both);
  return make_float2(both[0], both[1]);
}
// A bf16 is the upper half of a float: one instruction for each of the two.
__device__ inline float2 pair_of(const __nv_bfloat16* tile, int row) {
  const auto word = *reinterpret_cast<const std::uint32_t*>(tile + row * kTile + 2 * threadIdx.x);
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000U));
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

// Parts in shared memory at a time. A kernel of any size has room for one.
template <int kKernel>
constexpr int kConvolveStages = kKernel > 0 ? 2 : 1;
template <class X, int kKernel>
constexpr std::size_t convolve_bytes(int kernel) {
  const std::size_t stage = sizeof(X) * kTile * (kFrames + kernel - 1),
                    taps = sizeof(float) * kTapRow * kernel;
  return kKernel > 0 ? kConvolveStages<kKernel> * stage : stage + taps;
}

// With kKernel > 0 taps and sums live in registers and every frame is read from the tile once;
// with 0 the kernel's size is `size`.
template <class X, class Y, int kKernel>
__global__ void __launch_bounds__(kLanes* kRows, 4)
    convolve(const X* __restrict__ x, Taps given, Y* __restrict__ y, int batch, int frames,
             int channels, int size) {
  extern __shared__ __align__(16) float shared[];
  const int kernel = kKernel > 0 ? kKernel : size, rows = kFrames + kernel - 1;
  X* tiles = reinterpret_cast<X*>(shared);                       // (stages, rows, kTile)
  float* taps = reinterpret_cast<float*>(tiles + rows * kTile);  // (kernel, kTapRow)
  static_assert(kKernel * kTapRow * sizeof(float) <= (kFrames + kKernel - 1) * kTile * sizeof(X),
                "taps lie in the second stage until they are in registers");
  const int channel = blockIdx.x * kTile, mine = 2 * threadIdx.x, begin = threadIdx.y * kSteps;
  const Parts all(batch, frames, channels);
  const auto copy_part = [&](int i, int stage) {
    if (i >= all.count()) return;
    const Part part = all[i];
    copy_tile(x + part.offset, tiles + stage * rows * kTile, part.first - (kernel - 1) / 2, rows,
              frames, channels, channel);
  };
  copy_part(blockIdx.y, 0);
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (int i = thread; i < kernel * kTile; i += kLanes * kRows) {
    const int k = i % kernel, c = i / kernel;
    const float w = channel + c < channels ? given.w[channel * kernel + i] : 0.0F;
    taps[(given.flip ? kernel - 1 - k : k) * kTapRow + c] =
        given.residual && k == (kernel - 1) / 2 ? w + 1.0F : w;
  }
  float2 start = make_float2(0, 0);
  if (given.bias != nullptr) {
    if (channel + mine < channels) start.x = given.bias[channel + mine];
    if (channel + mine + 1 < channels) start.y = given.bias[channel + mine + 1];
  }
  __syncthreads();
  const auto tap_of = [&](int k) {
    return *reinterpret_cast<const float2*>(taps + k * kTapRow + mine);
  };
  float2 tap[kKernel + 1];  // one more: it may be 0
#pragma unroll
  for (int k = 0; k < kKernel; ++k) tap[k] = tap_of(k);

  int stage = 0;
  for (int i = blockIdx.y; i < all.count(); i += gridDim.y) {
    wait_for_copies();
    __syncthreads();  // also: all threads have their taps, and are done with the other stage
    if constexpr (kConvolveStages<kKernel> == 2) copy_part(i + gridDim.y, 1 - stage);
    const X* tile = tiles + stage * rows * kTile;
    float2 sums[kSteps];
#pragma unroll
    for (int r = 0; r < kSteps; ++r) sums[r] = start;
    if constexpr (kKernel > 0) {
#pragma unroll
      for (int f = 0; f < kSteps + kKernel - 1; ++f) {
        const float2 v = pair_of(tile, begin + f);
#pragma unroll
        for (int r = 0; r < kSteps; ++r)
          if (f - r >= 0 && f - r < kKernel) multiply_add(sums[r], tap[f - r], v);
      }
      stage = 1 - stage;
    } else {
      for (int k = 0; k < kernel; ++k) {
        const float2 w = tap_of(k);
#pragma unroll
        for (int r = 0; r < kSteps; ++r) multiply_add(sums[r], w, pair_of(tile, begin + r + k));
      }
      __syncthreads();
      copy_part(i + gridDim.y, 0);
    }
    const Part part = all[i];
    const int t = part.first + begin, c = channel + mine;
    if (c >= channels) continue;
    Y* out = y + part.offset + static_cast<std::int64_t>(t) * channels + c;
    const int exist = frames - t;  // of the thread's frames
    if (channels % 2 == 0) {
#pragma unroll
      for (int r = 0; r < kSteps; ++r) {
        const float both[2] = {sums[r].x, sums[r].y};
        if (r < exist) write_pack(out, both);
        out += channels;
      }
    } else {
#pragma unroll
      for (int r = 0; r < kSteps; ++r) {
        if (r < exist) out[0] = from_float<Y>(sums[r].x);
        if (r < exist && c + 1 < channels) out[1] = from_float<Y>(sums[r].y);
        out += channels;
      }
    }
  }
}

constexpr int kTapGroup = 8;  // taps of a thread, and frames it takes at a time
constexpr int kMaxTaps = 64;
// Parts in shared memory at a time: float takes the room of two.
template <class X, class G>
constexpr int kCorrelateStages = sizeof(X) + sizeof(G) > 4 ? 1 : 2;
template <class X, class G>
__host__ __device__ constexpr std::size_t correlate_stage(int groups) {
  return kTile * (sizeof(G) * kFrames + sizeof(X) * (kFrames + kTapGroup * groups));
}

// One block sums over a part of the batch for kTile channels; its sums go to partials (gridDim.y,
// kernel + 1, channels), those of the bias last. Thread row y has taps 8y .. 8y+7; of every frame
// of g and x it takes it uses each eight times.
template <class X, class G>
__global__ void correlate(const X* __restrict__ x, const G* __restrict__ g, float* partials,
                          int batch, int frames, int channels, int kernel) {
  extern __shared__ __align__(16) unsigned char bytes[];
  constexpr int kStages = kCorrelateStages<X, G>;
  const int groups = blockDim.y, channel = blockIdx.x * kTile, mine = 2 * threadIdx.x;
  const int first_tap = threadIdx.y * kTapGroup;
  const auto gs_of = [&](int stage) {  // (kFrames, kTile)
    return reinterpret_cast<G*>(bytes + stage * correlate_stage<X, G>(groups));
  };
  const auto xs_of = [&](int stage) {  // (kFrames + kTapGroup * groups, kTile)
    return reinterpret_cast<X*>(gs_of(stage) + kFrames * kTile);
  };
  const Parts all(batch, frames, channels);
  const auto copy_part = [&](int i, int stage) {
    if (i >= all.count()) return;
    const Part part = all[i];
    copy_tile(g + part.offset, gs_of(stage), part.first, kFrames, frames, channels, channel);
    copy_tile(x + part.offset, xs_of(stage), part.first - (kernel - 1) / 2,
              kFrames + kTapGroup * groups, frames, channels, channel);
  };
  copy_part(blockIdx.y, 0);
  float2 sums[kTapGroup] = {};
  float2 bias_sum = make_float2(0, 0);
  int stage = 0;
  for (int part = blockIdx.y; part < all.count(); part += gridDim.y) {
    wait_for_copies();
    __syncthreads();
    if constexpr (kStages == 2) copy_part(part + gridDim.y, 1 - stage);
    const G* gs = gs_of(stage);
    const X* xs = xs_of(stage);
    float2 window[2 * kTapGroup - 1];
#pragma unroll
    for (int i = 0; i < kTapGroup - 1; ++i) window[i] = pair_of(xs, first_tap + i);
#pragma unroll 2
    for (int t = 0; t < kFrames; t += kTapGroup) {
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
    if constexpr (kStages == 2) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      copy_part(part + gridDim.y, 0);
    }
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

void depthwise_conv(Number x_type, const void* x, const float* w, const float* bias,
                    ConvVariant variant, Number y_type, void* y, const ConvSize& size,
                    Stream stream) {
  const dim3 grid(parts(size.channels, kTile), blocks_along(size));
  const Taps taps{w, bias, variant.flip, variant.residual};
  with_type(x_type, [&](auto* x_pointer) {
    with_type(y_type, [&](auto* y_pointer) {
      using X = std::remove_pointer_t<decltype(x_pointer)>;
      using Y = std::remove_pointer_t<decltype(y_pointer)>;
      const auto launch = [&](auto known) {
        constexpr int kKernel = decltype(known)::value;
        const std::size_t bytes = convolve_bytes<X, kKernel>(size.kernel);
        allow_shared(convolve<X, Y, kKernel>, bytes);
        convolve<X, Y, kKernel><<<grid, dim3(kLanes, kRows), bytes, stream>>>(
            static_cast<const X*>(x), taps, static_cast<Y*>(y), static_cast<int>(size.batch),
            static_cast<int>(size.frames), static_cast<int>(size.channels), size.kernel);
      };
      if constexpr (std::is_same_v<X, Y>) {
        if (size.kernel == 31) return launch(std::integral_constant<int, 31>());
        if (size.kernel == 15) return launch(std::integral_constant<int, 15>());
      }
      launch(std::integral_constant<int, 0>());
    });
  });
  check_launch("depthwise_conv");
}

std::int64_t depthwise_conv_partials(const ConvSize& size) {
  return static_cast<std::int64_t>(blocks_along(size)) * (size.kernel + 1) * size.channels;
}

void depthwise_conv_weights(Number x_type, const void* x, Number g_type, const void* g,
                            float* grad_w, float* grad_bias, float* partials, const ConvSize& size,
                            Stream stream) {
  if (size.kernel > kMaxTaps) throw std::runtime_error("depthwise_conv: kernel over 64");
  const unsigned columns = parts(size.channels, kTile), groups = parts(size.kernel, kTapGroup);
  const dim3 grid(columns, blocks_along(size)), block(kLanes, groups);
  const int channels = static_cast<int>(size.channels);
  with_type(x_type, [&](auto* x_pointer) {
    with_type(g_type, [&](auto* g_pointer) {
      using X = std::remove_pointer_t<decltype(x_pointer)>;
      using G = std::remove_pointer_t<decltype(g_pointer)>;
      const std::size_t bytes =
          kCorrelateStages<X, G> * correlate_stage<X, G>(static_cast<int>(groups));
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
