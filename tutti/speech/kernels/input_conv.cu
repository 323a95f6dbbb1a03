#include "tutti/speech/kernels/input_conv.h"

#include <algorithm>

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kLanes = 32;       // threads along channels, each with a pack of them
constexpr int kWarps = 8;        // threads along positions
constexpr int kTileFrames = 16;  // frames of the output made from one tile of features
constexpr int kTaps = 9;
constexpr int kMaxParts = 264;  // blocks of a convolution: two for each processor of a large GPU
constexpr int kMaxRowParts = 1056;  // the same for a kernel with fewer registers

// Where a warp is in a tile of the output, whose positions (t, f) follow each other in memory.
struct Position {
  int frame, bin;
  __device__ Position(int index, int bins) : frame(index / bins), bin(index % bins) {}
  __device__ void advance(int bins) {
    bin += kWarps;
    while (bin >= bins) {
      bin -= bins;
      ++frame;
    }
  }
};

// The features that output frames first .. first+kTileFrames are made of; 0 past the end.
__device__ void load_features(const float* x, float* tile, int first, int stride, int frames,
                              int bins) {
  const int rows = stride * (kTileFrames - 1) + 3, begin = first * stride;
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  const int there = min(rows, frames - begin) * bins;
  for (int i = thread; i < rows * bins; i += kLanes * kWarps)
    tile[i] = i < there ? x[static_cast<std::int64_t>(begin) * bins + i] : 0.0F;
}

// A block goes through every gridDim.x-th tile of the batch: so it fetches its taps once, which lie far
// apart, and not for every tile.
template <class Y, int P>
__global__ void __launch_bounds__(kLanes* kWarps, 2)
    convolve_relu(const float* __restrict__ x, const float* __restrict__ w,
                  const float* __restrict__ bias, Y* __restrict__ y, int batch, int frames,
                  int bins, int out_frames, int out_bins, int channels, int stride) {
  extern __shared__ float tile[];
  const int channel = (blockIdx.y * kLanes + threadIdx.x) * P;
  const int tiles = (out_frames + kTileFrames - 1) / kTileFrames;
  float taps[kTaps][P] = {}, start[P] = {};
  if (channel < channels)
#pragma unroll
    for (int i = 0; i < P; ++i) {
      start[i] = bias[channel + i];
#pragma unroll
      for (int k = 0; k < kTaps; ++k) taps[k][i] = w[(channel + i) * kTaps + k];
    }
  for (int unit = blockIdx.x; unit < batch * tiles; unit += gridDim.x) {
    const int first = unit % tiles * kTileFrames;
    const std::int64_t utterance = unit / tiles;
    __syncthreads();  // the tile before may still be in use
    load_features(x + utterance * frames * bins, tile, first, stride, frames, bins);
    __syncthreads();
    if (channel >= channels) continue;
    const int count = min(kTileFrames, out_frames - first) * out_bins;
    Y* to = y + ((utterance * out_frames + first) * out_bins + threadIdx.y) * channels + channel;
    Position at(threadIdx.y, out_bins);
    for (int n = threadIdx.y; n < count; n += kWarps) {
      const float* window = tile + (at.frame * bins + at.bin) * stride;
      float sums[P];
#pragma unroll
      for (int i = 0; i < P; ++i) sums[i] = start[i];
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        const float value = window[k / 3 * bins + k % 3];
#pragma unroll
        for (int i = 0; i < P; ++i) sums[i] = fmaf(taps[k][i], value, sums[i]);
      }
      // Not fmaxf: what is not a number stays so, and somebody sees it.
#pragma unroll
      for (int i = 0; i < P; ++i) sums[i] = sums[i] < 0 ? 0 : sums[i];
      write_pack<P>(to, sums);
      to += static_cast<std::int64_t>(kWarps) * channels;
      at.advance(out_bins);
    }
  }
}

// Adds up what the warps of a block found, in their order. values[k] of pack element i of a lane
// ends at shared[(k * P + i) * kLanes + lane]. All threads must come.
template <int K, int P>
__device__ void add_warps(const float (&values)[K][P], float* shared) {
  for (int warp = 0; warp < kWarps; ++warp) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) != warp) continue;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < P; ++i) {
        float& sum = shared[(k * P + i) * kLanes + threadIdx.x];
        sum = warp == 0 ? values[k][i] : sum + values[k][i];
      }
  }
  __syncthreads();
}

// Tiles as above; a block's sums become one row of `partial`.
template <class Y, int P>
__global__ void __launch_bounds__(kLanes* kWarps, 2)
    correlate_relu(const float* __restrict__ x, const Y* __restrict__ g, const Y* __restrict__ y,
                   float* __restrict__ partial, int batch, int frames, int bins, int out_frames,
                   int out_bins, int channels, int stride) {
  extern __shared__ float tile[];
  const int channel = (blockIdx.y * kLanes + threadIdx.x) * P;
  const int tiles = (out_frames + kTileFrames - 1) / kTileFrames;
  float sums[kTaps + 1][P] = {};  // the last row is the bias
  for (int unit = blockIdx.x; unit < batch * tiles; unit += gridDim.x) {
    const int first = unit % tiles * kTileFrames;
    const std::int64_t utterance = unit / tiles;
    __syncthreads();  // the tile before may still be in use
    load_features(x + utterance * frames * bins, tile, first, stride, frames, bins);
    __syncthreads();
    if (channel >= channels) continue;
    const int count = min(kTileFrames, out_frames - first) * out_bins;
    const std::int64_t step = static_cast<std::int64_t>(kWarps) * channels;
    std::int64_t offset =
        ((utterance * out_frames + first) * out_bins + threadIdx.y) * channels + channel;
    Position at(threadIdx.y, out_bins);
    // The next position is on its way while this one is added.
    Pack<Y, P> g_next{}, y_next{};
    const auto fetch = [&](std::int64_t from) {
      g_next = *reinterpret_cast<const Pack<Y, P>*>(g + from);
      y_next = *reinterpret_cast<const Pack<Y, P>*>(y + from);
    };
    if (static_cast<int>(threadIdx.y) < count) fetch(offset);
    for (int n = threadIdx.y; n < count; n += kWarps) {
      const Pack<Y, P> g_now = g_next, y_now = y_next;
      offset += step;
      if (n + kWarps < count) fetch(offset);
      const float* window = tile + (at.frame * bins + at.bin) * stride;
      float passed[P];
#pragma unroll
      for (int i = 0; i < P; ++i) {
        passed[i] = to_float(y_now.at[i]) <= 0 ? 0 : to_float(g_now.at[i]);
        sums[kTaps][i] += passed[i];
      }
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        const float value = window[k / 3 * bins + k % 3];
#pragma unroll
        for (int i = 0; i < P; ++i) sums[k][i] = fmaf(passed[i], value, sums[k][i]);
      }
      at.advance(out_bins);
    }
  }
  add_warps(sums, tile);
  float* row = partial + static_cast<std::int64_t>(blockIdx.x) * (kTaps + 1) * channels;
  for (int n = threadIdx.y * kLanes + threadIdx.x; n < (kTaps + 1) * P * kLanes;
       n += kLanes * kWarps) {
    const int k = n / (P * kLanes);
    const int c = (blockIdx.y * kLanes + n % kLanes) * P + n / kLanes % P;
    if (c < channels) row[k < kTaps ? c * kTaps + k : kTaps * channels + c] = tile[n];
  }
}

// out[n] = sum_p partial[p,n]
__global__ void add_parts(const float* __restrict__ partial, float* __restrict__ out, int rows,
                          int columns) {
  __shared__ float shared[kLanes];
  const int column = blockIdx.x * kLanes + threadIdx.x;
  float sum[1][1] = {};
  if (column < columns)
    for (int p = threadIdx.y; p < rows; p += kWarps)
      sum[0][0] += partial[static_cast<std::int64_t>(p) * columns + column];
  add_warps(sum, shared);
  if (threadIdx.y == 0 && column < columns) out[column] = shared[threadIdx.x];
}

template <class T, int P>
__global__ void add_bias_relu(T* __restrict__ x, const float* __restrict__ bias, std::int64_t rows,
                              int channels) {
  const int channel = (blockIdx.y * kLanes + threadIdx.x) * P;
  if (channel >= channels) return;
  float add[P];
#pragma unroll
  for (int i = 0; i < P; ++i) add[i] = bias[channel + i];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
#pragma unroll 4
  for (std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y; r < rows;
       r += step) {
    float values[P];
    read_pack<P>(x + r * channels + channel, values);
#pragma unroll
    for (int i = 0; i < P; ++i) {
      values[i] += add[i];
      values[i] = values[i] < 0 ? 0 : values[i];
    }
    write_pack<P>(x + r * channels + channel, values);
  }
}

template <class T, int P>
__global__ void add_bias_relu_back(const T* __restrict__ g, const T* __restrict__ y,
                                   T* __restrict__ grad_x, float* __restrict__ partial,
                                   std::int64_t rows, int channels) {
  __shared__ float shared[P * kLanes];
  const int channel = (blockIdx.y * kLanes + threadIdx.x) * P;
  float sums[1][P] = {};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  if (channel < channels) {
#pragma unroll 4
    for (std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y; r < rows;
         r += step) {
      float gradient[P], value[P];
      read_pack<P>(g + r * channels + channel, gradient);
      read_pack<P>(y + r * channels + channel, value);
#pragma unroll
      for (int i = 0; i < P; ++i) {
        gradient[i] = value[i] <= 0 ? 0 : gradient[i];
        sums[0][i] += gradient[i];
      }
      write_pack<P>(grad_x + r * channels + channel, gradient);
    }
  }
  add_warps(sums, shared);
  for (int n = threadIdx.y * kLanes + threadIdx.x; n < P * kLanes; n += kLanes * kWarps) {
    const int c = (blockIdx.y * kLanes + n % kLanes) * P + n / kLanes;
    if (c < channels) partial[static_cast<std::int64_t>(blockIdx.x) * channels + c] = shared[n];
  }
}

// Calls f(null pointer of the type, pack size): 16 bytes at once where channels allow it.
template <class F>
void with_pack(Number number, std::int64_t channels, F f) {
  with_type(number, [&](auto* pointer) {
    constexpr int kPack = 16 / sizeof(*pointer);
    if (channels % kPack == 0)
      f(pointer, std::integral_constant<int, kPack>());
    else
      f(pointer, std::integral_constant<int, 1>());
  });
}

std::size_t tile_bytes(const InputConvSize& size) {
  return sizeof(float) * static_cast<std::size_t>(size.bins) *
         static_cast<std::size_t>(size.stride * (kTileFrames - 1) + 3);
}

// Rows of partial sums: they depend on the shape alone, and so does the order of the additions.
unsigned conv_parts(const InputConvSize& size) {
  return static_cast<unsigned>(
      std::min<std::int64_t>(kMaxParts, size.batch * parts(size.out_frames(), kTileFrames)));
}
unsigned row_parts(const RowsSize& size) {
  return std::min<unsigned>(kMaxRowParts, parts(size.rows, kWarps));
}

void sum_parts(const float* partial, float* out, unsigned rows, std::int64_t columns,
               Stream stream) {
  add_parts<<<dim3(parts(columns, kLanes)), dim3(kLanes, kWarps), 0, stream>>>(
      partial, out, static_cast<int>(rows), static_cast<int>(columns));
}

}  // namespace

void input_conv_relu(const float* x, const float* w, const float* bias, Number y_type, void* y,
                     const InputConvSize& size, Stream stream) {
  const std::size_t bytes = tile_bytes(size);
  with_pack(y_type, size.channels, [&](auto* pointer, auto pack) {
    using Y = std::remove_pointer_t<decltype(pointer)>;
    constexpr int kPack = decltype(pack)::value;
    const dim3 grid(conv_parts(size), parts(size.channels, kLanes * kPack));
    allow_shared(convolve_relu<Y, kPack>, bytes);
    convolve_relu<Y, kPack><<<grid, dim3(kLanes, kWarps), bytes, stream>>>(
        x, w, bias, static_cast<Y*>(y), static_cast<int>(size.batch), static_cast<int>(size.frames),
        static_cast<int>(size.bins), static_cast<int>(size.out_frames()),
        static_cast<int>(size.out_bins()), static_cast<int>(size.channels), size.stride);
  });
  check_launch("input_conv_relu");
}

std::int64_t input_conv_workspace(const InputConvSize& size) {
  return static_cast<std::int64_t>(conv_parts(size)) * (kTaps + 1) * size.channels;
}

void input_conv_relu_back(const float* x, Number y_type, const void* g, const void* y,
                          float* workspace, float* grads, const InputConvSize& size,
                          Stream stream) {
  with_pack(y_type, size.channels, [&](auto* pointer, auto pack) {
    using Y = std::remove_pointer_t<decltype(pointer)>;
    constexpr int kPack = decltype(pack)::value;
    // The sums of the warps meet where the tile was.
    const std::size_t bytes =
        std::max(tile_bytes(size), sizeof(float) * (kTaps + 1) * kPack * kLanes);
    const dim3 grid(conv_parts(size), parts(size.channels, kLanes * kPack));
    allow_shared(correlate_relu<Y, kPack>, bytes);
    correlate_relu<Y, kPack><<<grid, dim3(kLanes, kWarps), bytes, stream>>>(
        x, static_cast<const Y*>(g), static_cast<const Y*>(y), workspace,
        static_cast<int>(size.batch), static_cast<int>(size.frames), static_cast<int>(size.bins),
        static_cast<int>(size.out_frames()), static_cast<int>(size.out_bins()),
        static_cast<int>(size.channels), size.stride);
  });
  sum_parts(workspace, grads, conv_parts(size), (kTaps + 1) * size.channels, stream);
  check_launch("input_conv_relu_back");
}

void bias_relu(Number type, void* x, const float* bias, const RowsSize& size, Stream stream) {
  with_pack(type, size.channels, [&](auto* pointer, auto pack) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    constexpr int kPack = decltype(pack)::value;
    const dim3 grid(row_parts(size), parts(size.channels, kLanes * kPack));
    add_bias_relu<T, kPack><<<grid, dim3(kLanes, kWarps), 0, stream>>>(
        static_cast<T*>(x), bias, size.rows, static_cast<int>(size.channels));
  });
  check_launch("bias_relu");
}

std::int64_t bias_relu_workspace(const RowsSize& size) {
  return static_cast<std::int64_t>(row_parts(size)) * size.channels;
}

void bias_relu_back(Number type, const void* g, const void* y, void* grad_x, float* workspace,
                    float* grad_bias, const RowsSize& size, Stream stream) {
  with_pack(type, size.channels, [&](auto* pointer, auto pack) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    constexpr int kPack = decltype(pack)::value;
    const dim3 grid(row_parts(size), parts(size.channels, kLanes * kPack));
    add_bias_relu_back<T, kPack><<<grid, dim3(kLanes, kWarps), 0, stream>>>(
        static_cast<const T*>(g), static_cast<const T*>(y), static_cast<T*>(grad_x), workspace,
        size.rows, static_cast<int>(size.channels));
  });
  sum_parts(workspace, grad_bias, row_parts(size), size.channels, stream);
  check_launch("bias_relu_back");
}

}  // namespace tutti::speech::cuda
