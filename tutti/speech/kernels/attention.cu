#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

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

constexpr int kWarps = 4;  // of a block of attend_past, one for each row and head
constexpr int kMaxHeadSize = 256;

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
