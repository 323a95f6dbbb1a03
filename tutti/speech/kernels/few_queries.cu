// Attention of few queries over many keys: a block for each query and head.
#include "tutti/speech/kernels/early.cuh"
#include "tutti/speech/kernels/few_rows.h"

namespace tutti::speech::cuda {
namespace {

constexpr int kPack = 8;  // neighbours that a lane has of a key or a value
constexpr int kHeld = 6;  // places that a lane has at once
constexpr int kMaxHeadSize = 128;
constexpr int kMemoryWarps = 16, kPastWarps = 4;

template <class T>
__device__ inline void unpack(const uint4& from, float (&to)[kPack]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // the upper half of a float
    const unsigned words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
  } else {
    const T* halves = reinterpret_cast<const T*>(&from);
#pragma unroll
    for (int i = 0; i < kPack; ++i) to[i] = to_float(halves[i]);
  }
}

// Where the keys and values of one head lie.
template <class T>
struct Memory {
  const T *keys, *values;
  int head_size;
  __device__ std::int64_t at(int place) const {
    return static_cast<std::int64_t>(place) * head_size;
  }
};
template <class T>
struct Past {
  const T *keys, *values;         // of row 0 and this head
  const std::int32_t* ancestors;  // of this row
  std::int64_t row_stride;
  int head_size;
  __device__ std::int64_t at(int place) const {
    return ancestors[place] * row_stride + static_cast<std::int64_t>(place) * head_size;
  }
};

// head_size / 8 lanes have a place, the lanes of all warps share the places. Each warp has a softmax
// of its own, and they are joined at the end. What is there already is read before the kernel
// before this one has ended: all places but the newest, if there is one, which that kernel makes.
template <int kWarps, class T>
struct Attend {
  const T* q;
  const T *newest_key = nullptr, *newest_value = nullptr;  // of the last place
  const T* bias = nullptr;
  T* out;
  int count, head_size;

  template <class Where>
  __device__ void run(const Where& where) const {
    __shared__ float sums[kWarps][kMaxHeadSize];
    __shared__ float tops[kWarps], totals[kWarps];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int lanes = head_size / kPack, part = lane % lanes * kPack, groups = 32 / lanes;
    const int step = kWarps * groups, first = warp * groups + lane / lanes;

    uint4 keys[kHeld], values[kHeld];
    float shifts[kHeld];
    const auto fetch = [&](int base) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int place = base + j * step;
        if (place >= count || (newest_key != nullptr && place == count - 1)) continue;
        const std::int64_t at = where.at(place) + part;
        keys[j] = *reinterpret_cast<const uint4*>(where.keys + at);
        values[j] = *reinterpret_cast<const uint4*>(where.values + at);
        shifts[j] = bias == nullptr ? 0.0F : to_float(bias[place]);
      }
    };
    fetch(first);
    wait_for_previous();
    float query[kPack];
    read_pack(q + part, query);
    const float scale = rsqrtf(static_cast<float>(head_size));
    float top = -INFINITY, total = 0, sum[kPack] = {};
    for (int base = first; base - first < count; base += kHeld * step) {
      if (base != first) fetch(base);
      float scores[kHeld], higher = top;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int place = base + j * step;
        if (newest_key != nullptr && place == count - 1) {
          keys[j] = *reinterpret_cast<const uint4*>(newest_key + part);
          values[j] = *reinterpret_cast<const uint4*>(newest_value + part);
          shifts[j] = 0;
        }
        float score = 0, key[kPack];
        unpack<T>(keys[j], key);
#pragma unroll
        for (int d = 0; d < kPack; ++d) score = fmaf(query[d], key[d], score);
        for (int other = lanes / 2; other > 0; other /= 2)
          score += __shfl_xor_sync(0xffffffffU, score, other);
        scores[j] = place < count ? score * scale + shifts[j] : -INFINITY;
        higher = fmaxf(higher, scores[j]);
      }
      for (int other = lanes; other < 32; other *= 2)
        higher = fmaxf(higher, __shfl_xor_sync(0xffffffffU, higher, other));
      if (higher == -INFINITY) continue;  // nothing to see for this warp
      const float shrink = expf(top - higher);
      top = higher;
      total *= shrink;
#pragma unroll
      for (int d = 0; d < kPack; ++d) sum[d] *= shrink;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        if (scores[j] == -INFINITY) continue;  // what lies there need not be a number
        const float weight = expf(scores[j] - top);
        float value[kPack];
        unpack<T>(values[j], value);
        total += weight;
#pragma unroll
        for (int d = 0; d < kPack; ++d) sum[d] = fmaf(weight, value[d], sum[d]);
      }
    }
    for (int other = lanes; other < 32; other *= 2) {
      total += __shfl_xor_sync(0xffffffffU, total, other);
#pragma unroll
      for (int d = 0; d < kPack; ++d) sum[d] += __shfl_xor_sync(0xffffffffU, sum[d], other);
    }
    if (lane < lanes)
#pragma unroll
      for (int d = 0; d < kPack; ++d) sums[warp][part + d] = sum[d];
    if (lane == 0) {
      tops[warp] = top;
      totals[warp] = total;
    }
    __syncthreads();
    for (int d = warp * 32 + lane; d < head_size; d += kWarps * 32) {
      float highest = -INFINITY, all = 0, value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, tops[w]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float weight = expf(tops[w] - highest);  // 0 of a warp that saw nothing
        all = fmaf(weight, totals[w], all);
        value = fmaf(weight, sums[w][d], value);
      }
      out[d] = from_float<T>(value / all);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(32 * kMemoryWarps)
    attend_memory_kernel(const T* q, const T* keys, const T* values, const T* bias, T* out,
                         int queries, int heads, int frames, int head_size) {
  const int head = blockIdx.x, row = blockIdx.y, utterance = row / queries;
  const std::int64_t memory =
      (static_cast<std::int64_t>(utterance) * heads + head) * frames * head_size;
  const std::int64_t mine = (static_cast<std::int64_t>(row) * heads + head) * head_size;
  let_next_begin();
  Attend<kMemoryWarps, T> attend;
  attend.q = q + mine;
  attend.bias = bias == nullptr ? bias : bias + static_cast<std::int64_t>(utterance) * frames;
  attend.out = out + mine;
  attend.count = frames;
  attend.head_size = head_size;
  attend.run(Memory<T>{keys + memory, values + memory, head_size});
}

// `position`, the caches before it and the ancestors before it are of steps that are over.
template <class T>
__global__ void attend_past_few_kernel(const T* q, const T* k, const T* v, T* k_cache, T* v_cache,
                                       std::int32_t* ancestors, const std::int64_t* position,
                                       T* out, int heads, int capacity, int head_size) {
  const int head = blockIdx.x, row = blockIdx.y;
  const int last = static_cast<int>(*position);
  const std::int64_t row_stride = static_cast<std::int64_t>(heads) * capacity * head_size;
  const std::int64_t head_offset = static_cast<std::int64_t>(head) * capacity * head_size;
  const std::int64_t mine = (static_cast<std::int64_t>(row) * heads + head) * head_size;
  std::int32_t* own = ancestors + static_cast<std::int64_t>(row) * capacity;
  let_next_begin();
  Attend<kPastWarps, T> attend;
  attend.q = q + mine;
  attend.newest_key = k + mine;
  attend.newest_value = v + mine;
  attend.out = out + mine;
  attend.count = last + 1;
  attend.head_size = head_size;
  attend.run(Past<T>{k_cache + head_offset, v_cache + head_offset, own, row_stride, head_size});
  const std::int64_t to =
      row * row_stride + head_offset + static_cast<std::int64_t>(last) * head_size;
  for (int d = threadIdx.y * 32 + threadIdx.x; d < head_size; d += blockDim.y * 32) {
    k_cache[to + d] = k[mine + d];
    v_cache[to + d] = v[mine + d];
  }
  if (head == 0 && threadIdx.x == 0 && threadIdx.y == 0) own[last] = row;
}

template <class F>
void with_half_type(Number number, F f) {
  if (number == Number::kFloat) throw std::runtime_error("few_queries: float is not known");
  if (number == Number::kHalf) return f(static_cast<__half*>(nullptr));
  f(static_cast<__nv_bfloat16*>(nullptr));
}

}  // namespace

bool few_queries_known(std::int64_t head_size) {
  return head_size == 32 || head_size == 64 || head_size == kMaxHeadSize;
}

void attend_memory(Number type, const AttendMemory& call, Stream stream) {
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    const dim3 grid(static_cast<unsigned>(call.heads),
                    static_cast<unsigned>(call.utterances * call.queries));
    launch_early(attend_memory_kernel<T>, grid, dim3(32, kMemoryWarps), 0, stream,
                 static_cast<const T*>(call.q), static_cast<const T*>(call.keys),
                 static_cast<const T*>(call.values), static_cast<const T*>(call.bias),
                 static_cast<T*>(call.out), static_cast<int>(call.queries),
                 static_cast<int>(call.heads), static_cast<int>(call.frames),
                 static_cast<int>(call.head_size));
  });
  check_launch("attend_memory");
}

void attend_past_few(Number type, const void* q, const void* k, const void* v, void* k_cache,
                     void* v_cache, std::int32_t* ancestors, const std::int64_t* position,
                     void* out, const PastSize& size, Stream stream) {
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    launch_early(attend_past_few_kernel<T>,
                 dim3(static_cast<unsigned>(size.heads), static_cast<unsigned>(size.rows)),
                 dim3(32, kPastWarps), 0, stream, static_cast<const T*>(q),
                 static_cast<const T*>(k), static_cast<const T*>(v), static_cast<T*>(k_cache),
                 static_cast<T*>(v_cache), ancestors, position, static_cast<T*>(out),
                 static_cast<int>(size.heads), static_cast<int>(size.capacity),
                 static_cast<int>(size.head_size));
  });
  check_launch("attend_past_few");
}

}  // namespace tutti::speech::cuda
