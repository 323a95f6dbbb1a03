#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tutti/speech/cuda/kernels.h"

namespace tutti::speech::cuda {
namespace {

constexpr int kLanes = 32;         // threads along channels
constexpr int kTile = 2 * kLanes;  // channels of a block: two for each thread
constexpr int kRows = 4;           // threads along time
constexpr int kSteps = 16;         // frames of a thread
constexpr int kFrames = kRows * kSteps;

template <class T>
__device__ float to_float(T value) {
  return static_cast<float>(value);
}
template <class T>
__device__ T from_float(float value) {
  return static_cast<T>(value);
}

// Frames first-pad .. first+count+pad of one utterance and kTile channels, as floats; 0 outside.
template <class T>
__device__ void load_tile(const T* x, float* tile, int first, int rows, int frames, int channels,
                          int channel) {
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (int i = thread; i < rows * kTile; i += kLanes * kRows) {
    const int t = first + i / kTile, c = channel + i % kTile;
    tile[i] = t >= 0 && t < frames && c < channels
                  ? to_float(x[static_cast<std::int64_t>(t) * channels + c])
                  : 0.0F;
  }
}

template <class X, class Y>
__global__ void convolve(const X* __restrict__ x, const float* __restrict__ w,
                         const float* __restrict__ bias, bool flip, Y* __restrict__ y, int frames,
                         int channels, int kernel) {
  extern __shared__ float shared[];
  float* tile = shared;                                   // (kFrames + kernel - 1, kTile)
  float* taps = shared + (kFrames + kernel - 1) * kTile;  // (kernel, kTile)
  const int first = blockIdx.x * kFrames, channel = blockIdx.y * kTile;
  const std::int64_t offset = static_cast<std::int64_t>(blockIdx.z) * frames * channels;
  load_tile(x + offset, tile, first - (kernel - 1) / 2, kFrames + kernel - 1, frames, channels,
            channel);
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (int i = thread; i < kernel * kTile; i += kLanes * kRows) {
    const int k = i / kTile, c = channel + i % kTile;
    taps[i] = c < channels ? w[(flip ? kernel - 1 - k : k) * channels + c] : 0.0F;
  }
  __syncthreads();

  float2 sums[kSteps];
  const int mine = 2 * threadIdx.x, begin = threadIdx.y * kSteps;
  float2 start = make_float2(0, 0);
  if (bias != nullptr) {
    if (channel + mine < channels) start.x = bias[channel + mine];
    if (channel + mine + 1 < channels) start.y = bias[channel + mine + 1];
  }
#pragma unroll
  for (int r = 0; r < kSteps; ++r) sums[r] = start;
  for (int k = 0; k < kernel; ++k) {
    const float2 tap = *reinterpret_cast<const float2*>(taps + k * kTile + mine);
#pragma unroll
    for (int r = 0; r < kSteps; ++r) {
      const float2 v = *reinterpret_cast<const float2*>(tile + (begin + r + k) * kTile + mine);
      sums[r].x = fmaf(tap.x, v.x, sums[r].x);
      sums[r].y = fmaf(tap.y, v.y, sums[r].y);
    }
  }
#pragma unroll
  for (int r = 0; r < kSteps; ++r) {
    const int t = first + begin + r, c = channel + mine;
    if (t >= frames) break;
    Y* out = y + offset + static_cast<std::int64_t>(t) * channels + c;
    if (c < channels) out[0] = from_float<Y>(sums[r].x);
    if (c + 1 < channels) out[1] = from_float<Y>(sums[r].y);
  }
}

constexpr int kTapRows = 8;   // threads along taps
constexpr int kMaxTaps = 64;  // kTapRows * taps of a thread
constexpr int kChunk = 64;    // frames between two loads

// One block sums over a part of the batch for kTile channels, then adds to the result.
template <class X, class G>
__global__ void correlate(const X* __restrict__ x, const G* __restrict__ g, float* grad_w,
                          float* grad_bias, int batch, int frames, int channels, int kernel) {
  extern __shared__ float shared[];
  float* gs = shared;                   // (kChunk, kTile)
  float* xs = shared + kChunk * kTile;  // (kChunk + kernel - 1, kTile)
  const int channel = blockIdx.x * kTile, mine = 2 * threadIdx.x;
  const int chunks = (frames + kChunk - 1) / kChunk;
  float2 sums[kMaxTaps / kTapRows] = {};
  float2 bias_sum = make_float2(0, 0);
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (int part = blockIdx.y; part < batch * chunks; part += gridDim.y) {
    const int first = part % chunks * kChunk;
    const std::int64_t offset = static_cast<std::int64_t>(part / chunks) * frames * channels;
    for (int i = thread; i < (2 * kChunk + kernel - 1) * kTile; i += kLanes * kTapRows) {
      const int row = i / kTile, c = channel + i % kTile;
      const bool is_g = row < kChunk;
      const int t = is_g ? first + row : first + row - kChunk - (kernel - 1) / 2;
      const bool there = t >= 0 && t < frames && c < channels;
      const std::int64_t at = offset + static_cast<std::int64_t>(t) * channels + c;
      shared[i] = !there ? 0.0F : is_g ? to_float(g[at]) : to_float(x[at]);
    }
    __syncthreads();
    for (int t = 0; t < kChunk; ++t) {
      const float2 gv = *reinterpret_cast<const float2*>(gs + t * kTile + mine);
      if (threadIdx.y == 0) {
        bias_sum.x += gv.x;
        bias_sum.y += gv.y;
      }
#pragma unroll
      for (int j = 0; j < kMaxTaps / kTapRows; ++j) {
        const int k = threadIdx.y + j * kTapRows;
        if (k >= kernel) break;
        const float2 xv = *reinterpret_cast<const float2*>(xs + (t + k) * kTile + mine);
        sums[j].x = fmaf(gv.x, xv.x, sums[j].x);
        sums[j].y = fmaf(gv.y, xv.y, sums[j].y);
      }
    }
    __syncthreads();
  }
  const int c = channel + mine;
#pragma unroll
  for (int j = 0; j < kMaxTaps / kTapRows; ++j) {
    const int k = threadIdx.y + j * kTapRows;
    if (k >= kernel) break;
    if (c < channels) atomicAdd(grad_w + k * channels + c, sums[j].x);
    if (c + 1 < channels) atomicAdd(grad_w + k * channels + c + 1, sums[j].y);
  }
  if (threadIdx.y == 0) {
    if (c < channels) atomicAdd(grad_bias + c, bias_sum.x);
    if (c + 1 < channels) atomicAdd(grad_bias + c + 1, bias_sum.y);
  }
}

// One block per row (b, h, i).
template <class T>
__global__ void shift(const T* __restrict__ scores, const T* __restrict__ key_bias,
                      T* __restrict__ out, int batch, int heads, int frames, int columns,
                      int out_row) {
  const int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  const T* row = scores + ((static_cast<std::int64_t>(h) * batch + b) * frames + i) * columns +
                 (frames - 1 - i);
  T* to = out + ((static_cast<std::int64_t>(b) * heads + h) * frames + i) * out_row;
  for (int j = threadIdx.x; j < frames; j += blockDim.x) {
    const float bias =
        key_bias == nullptr ? 0.0F : to_float(key_bias[static_cast<std::int64_t>(b) * frames + j]);
    to[j] = from_float<T>(to_float(row[j]) + bias);
  }
}

template <class T>
__global__ void shift_back(const T* __restrict__ grad_out, std::int64_t stride_b,
                           std::int64_t stride_h, std::int64_t stride_i, T* __restrict__ grad,
                           int batch, int frames, int columns) {
  const int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  const T* from = grad_out + b * stride_b + h * stride_h + i * stride_i;
  T* row = grad + ((static_cast<std::int64_t>(h) * batch + b) * frames + i) * columns;
  for (int n = threadIdx.x; n < columns; n += blockDim.x) {
    const int j = n - (frames - 1 - i);
    row[n] = j >= 0 && j < frames ? from[j] : from_float<T>(0.0F);
  }
}

void check_launch(const char* what) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": CUDA: " + cudaGetErrorString(error));
}

// Calls f with a null pointer of the C++ type of `number`.
template <class F>
void with_type(Number number, F f) {
  switch (number) {
    case Number::kFloat:
      return f(static_cast<float*>(nullptr));
    case Number::kHalf:
      return f(static_cast<__half*>(nullptr));
    case Number::kBFloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
  }
}

// Kernels with more shared memory than the default must be allowed to have it.
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  if (bytes > 48 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
}

unsigned parts(std::int64_t total, std::int64_t size) {
  return static_cast<unsigned>((total + size - 1) / size);
}

constexpr int kWarps = 4;  // of a block of attend_past, one for each row and head
constexpr int kMaxHeadSize = 256;

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}
__device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, step));
  return x;
}

// A warp serves one row and head: each lane scores one place at a time, then the lanes share the
// dimensions of the values.
template <class T>
__global__ void attend_past_kernel(const T* __restrict__ q, const T* __restrict__ k,
                                   const T* __restrict__ v, T* k_cache, T* v_cache,
                                   std::int32_t* ancestors, const std::int64_t* position,
                                   T* __restrict__ out, int rows, int heads, int capacity,
                                   int head_size) {
  __shared__ float queries[kWarps][kMaxHeadSize];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int unit = blockIdx.x * kWarps + warp;
  if (unit >= rows * heads) return;
  const int row = unit / heads, head = unit % heads;
  const int last = static_cast<int>(*position);
  const std::int64_t row_stride = static_cast<std::int64_t>(heads) * capacity * head_size;
  const std::int64_t head_offset = static_cast<std::int64_t>(head) * capacity * head_size;
  const std::int64_t at = static_cast<std::int64_t>(unit) * head_size;
  const std::int64_t mine =
      row * row_stride + head_offset + static_cast<std::int64_t>(last) * head_size;
  const float scale = rsqrtf(static_cast<float>(head_size));
  for (int d = lane; d < head_size; d += 32) {
    queries[warp][d] = to_float(q[at + d]) * scale;
    k_cache[mine + d] = k[at + d];
    v_cache[mine + d] = v[at + d];
  }
  if (head == 0 && lane == 0) ancestors[static_cast<std::int64_t>(row) * capacity + last] = row;
  __syncwarp();

  float top = -INFINITY, sum = 0, value[kMaxHeadSize / 32] = {};
  for (int base = 0; base <= last; base += 32) {
    const int place = base + lane;
    // The row itself is the ancestor of its newest token, whoever has written that by now.
    int ancestor = row;
    if (place < last) ancestor = ancestors[static_cast<std::int64_t>(row) * capacity + place];
    float score = -INFINITY;
    if (place <= last) {
      const T* key = k_cache + ancestor * row_stride + head_offset +
                     static_cast<std::int64_t>(place) * head_size;
      score = 0;
      constexpr int kPack = 16 / sizeof(T);
      for (int d = 0; d < head_size; d += kPack) {
        const int4 raw = *reinterpret_cast<const int4*>(key + d);
        const T* pack = reinterpret_cast<const T*>(&raw);
#pragma unroll
        for (int i = 0; i < kPack; ++i)
          score = fmaf(queries[warp][d + i], to_float(pack[i]), score);
      }
    }
    const float higher = fmaxf(top, warp_max(score));
    const float weight = place <= last ? expf(score - higher) : 0.0F;
    const float shrink = expf(top - higher);
    top = higher;
    sum = sum * shrink + warp_sum(weight);
#pragma unroll
    for (int i = 0; i < kMaxHeadSize / 32; ++i) value[i] *= shrink;
    const int count = min(32, last - base + 1);
    for (int j = 0; j < count; ++j) {
      const float w = __shfl_sync(0xffffffffU, weight, j);
      const int source = __shfl_sync(0xffffffffU, ancestor, j);
      const T* values = v_cache + source * row_stride + head_offset +
                        static_cast<std::int64_t>(base + j) * head_size;
#pragma unroll
      for (int i = 0; i < kMaxHeadSize / 32; ++i) {
        const int d = lane + 32 * i;
        if (d < head_size) value[i] = fmaf(w, to_float(values[d]), value[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kMaxHeadSize / 32; ++i) {
    const int d = lane + 32 * i;
    if (d < head_size) out[at + d] = from_float<T>(value[i] / sum);
  }
}

}  // namespace

void depthwise_conv(Number x_type, const void* x, const float* w, const float* bias, bool flip,
                    Number y_type, void* y, const ConvSize& size, Stream stream) {
  const dim3 grid(parts(size.frames, kFrames), parts(size.channels, kTile),
                  static_cast<unsigned>(size.batch));
  const dim3 block(kLanes, kRows);
  const std::size_t bytes =
      sizeof(float) * kTile * static_cast<std::size_t>(kFrames + 2 * size.kernel - 1);
  with_type(x_type, [&](auto* x_pointer) {
    with_type(y_type, [&](auto* y_pointer) {
      using X = std::remove_pointer_t<decltype(x_pointer)>;
      using Y = std::remove_pointer_t<decltype(y_pointer)>;
      allow_shared(convolve<X, Y>, bytes);
      convolve<X, Y><<<grid, block, bytes, stream>>>(
          static_cast<const X*>(x), w, bias, flip, static_cast<Y*>(y),
          static_cast<int>(size.frames), static_cast<int>(size.channels), size.kernel);
    });
  });
  check_launch("depthwise_conv");
}

void depthwise_conv_weights(Number x_type, const void* x, Number g_type, const void* g,
                            float* grad_w, float* grad_bias, const ConvSize& size, Stream stream) {
  if (size.kernel > kMaxTaps) throw std::runtime_error("depthwise_conv: kernel over 64");
  const std::int64_t total = size.batch * parts(size.frames, kChunk);
  const unsigned columns = parts(size.channels, kTile);
  // Enough blocks for every processor, few enough that additions to the result are rare.
  const unsigned rows = static_cast<unsigned>(std::min<std::int64_t>(total, 1024 / columns + 1));
  const dim3 grid(columns, rows), block(kLanes, kTapRows);
  const std::size_t bytes =
      sizeof(float) * kTile * static_cast<std::size_t>(2 * kChunk + size.kernel - 1);
  with_type(x_type, [&](auto* x_pointer) {
    with_type(g_type, [&](auto* g_pointer) {
      using X = std::remove_pointer_t<decltype(x_pointer)>;
      using G = std::remove_pointer_t<decltype(g_pointer)>;
      allow_shared(correlate<X, G>, bytes);
      correlate<X, G><<<grid, block, bytes, stream>>>(
          static_cast<const X*>(x), static_cast<const G*>(g), grad_w, grad_bias,
          static_cast<int>(size.batch), static_cast<int>(size.frames),
          static_cast<int>(size.channels), size.kernel);
    });
  });
  check_launch("depthwise_conv_weights");
}

void relative_shift(Number type, const void* scores, const void* key_bias, void* out,
                    const ShiftSize& size, Stream stream) {
  const dim3 grid(static_cast<unsigned>(size.frames), static_cast<unsigned>(size.heads),
                  static_cast<unsigned>(size.batch));
  with_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    shift<T><<<grid, 128, 0, stream>>>(
        static_cast<const T*>(scores), static_cast<const T*>(key_bias), static_cast<T*>(out),
        static_cast<int>(size.batch), static_cast<int>(size.heads), static_cast<int>(size.frames),
        static_cast<int>(size.columns), static_cast<int>(size.out_row));
  });
  check_launch("relative_shift");
}

void relative_shift_back(Number type, const void* grad_out, const std::int64_t (&strides)[3],
                         void* grad_scores, const ShiftSize& size, Stream stream) {
  const dim3 grid(static_cast<unsigned>(size.frames), static_cast<unsigned>(size.heads),
                  static_cast<unsigned>(size.batch));
  with_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    shift_back<T><<<grid, 128, 0, stream>>>(
        static_cast<const T*>(grad_out), strides[0], strides[1], strides[2],
        static_cast<T*>(grad_scores), static_cast<int>(size.batch), static_cast<int>(size.frames),
        static_cast<int>(size.columns));
  });
  check_launch("relative_shift_back");
}

void attend_past(Number type, const void* q, const void* k, const void* v, void* k_cache,
                 void* v_cache, std::int32_t* ancestors, const std::int64_t* position, void* out,
                 const PastSize& size, Stream stream) {
  if (size.head_size % 8 != 0 || size.head_size > kMaxHeadSize)
    throw std::runtime_error("attend_past: head size " + std::to_string(size.head_size));
  const dim3 grid(parts(size.rows * size.heads, kWarps)), block(32, kWarps);
  with_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    attend_past_kernel<T><<<grid, block, 0, stream>>>(
        static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
        static_cast<T*>(k_cache), static_cast<T*>(v_cache), ancestors, position,
        static_cast<T*>(out), static_cast<int>(size.rows), static_cast<int>(size.heads),
        static_cast<int>(size.capacity), static_cast<int>(size.head_size));
  });
  check_launch("attend_past");
}

}  // namespace tutti::speech::cuda
