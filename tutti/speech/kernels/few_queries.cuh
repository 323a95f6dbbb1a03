// Attention of few queries over many keys, by the warps of a block.
//
// head_size / 8 lanes have a place, the lanes of all warps share the places. Each warp has a softmax
// of its own, and they are joined at the end.
#pragma once

#include "tutti/speech/kernels/device.cuh"
#include "tutti/speech/kernels/few_rows.h"

namespace tutti::speech::cuda {

constexpr int kKeyPack = 8;  // neighbours that a lane has of a key or a value
constexpr int kMaxHeadSize = 128;

template <class T>
__device__ inline void unpack(const uint4& from, float (&to)[kKeyPack]) {
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
    for (int i = 0; i < kKeyPack; ++i) to[i] = to_float(halves[i]);
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

template <class T>
__device__ inline Memory<T> memory_of(const AttendMemory& call, std::int64_t utterance, int head) {
  const std::int64_t at = (utterance * call.heads + head) * call.frames * call.head_size;
  return {static_cast<const T*>(call.keys) + at, static_cast<const T*>(call.values) + at,
          static_cast<int>(call.head_size)};
}
template <class T>
__device__ inline Past<T> past_of(const AttendPast& call, int row, int head) {
  const std::int64_t of_head = call.size.capacity * call.size.head_size;
  return {static_cast<const T*>(call.k_cache) + head * of_head,
          static_cast<const T*>(call.v_cache) + head * of_head,
          call.ancestors + row * call.size.capacity, call.size.heads * of_head,
          static_cast<int>(call.size.head_size)};
}

// The newest key and value of a row and a head into its cache; by all threads of a block.
template <class T>
__device__ inline void enter_newest(const AttendPast& call, int row, int head, int last, const T* k,
                                    const T* v) {
  const int head_size = static_cast<int>(call.size.head_size);
  const std::int64_t to =
      ((row * call.size.heads + head) * call.size.capacity + last) * call.size.head_size;
  const int mine = threadIdx.y * 32 + threadIdx.x;
  for (int d = mine; d < head_size; d += blockDim.y * 32) {
    static_cast<T*>(call.k_cache)[to + d] = k[d];
    static_cast<T*>(call.v_cache)[to + d] = v[d];
  }
  if (head == 0 && mine == 0) call.ancestors[row * call.size.capacity + last] = row;
}

// What a warp has seen: the highest score, and sums of weights relative to it. Lanes have 8 of the
// values' sums.
struct Seen {
  float top = -INFINITY, total = 0, sum[kKeyPack] = {};
};

// Where parts of a softmax lie, for one query: of each part, `head_size` sums.
struct Parts {
  float *tops, *totals, *sums;
};

struct Joined {
  float top = -INFINITY, total = 0, sum = 0;
};

// Of one dimension; the parts' sums are `stride` apart.
template <int kParts>
__device__ inline Joined join_parts(const Parts& parts, int at, int stride) {
  Joined out;
#pragma unroll
  for (int p = 0; p < kParts; ++p) out.top = fmaxf(out.top, parts.tops[p]);
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    // A part that saw nothing: nor, perhaps, did any other.
    const float weight = parts.tops[p] == -INFINITY ? 0.0F : expf(parts.tops[p] - out.top);
    out.total = fmaf(weight, parts.totals[p], out.total);
    out.sum = fmaf(weight, parts.sums[p * stride + at], out.sum);
  }
  return out;
}

// Places begin .. end - 1 of a head's keys and values, kHeld of them held by a lane at once.
template <int kWarps, int kHeld, class T>
struct Attend {
  const T *newest_key = nullptr, *newest_value = nullptr;  // of the last place, if made just now
  const T* bias = nullptr;
  int begin = 0, end = 0, head_size = 0;

  // Whether one fetch() is all.
  __device__ bool fits() const { return end - begin <= kHeld * step(); }

  // What is there already: all places but the newest.
  template <class Where>
  __device__ void fetch(const Where& where, int base = 0) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int place = place_of(base, j);
      if (place >= end || (newest_key != nullptr && place == end - 1)) continue;
      const std::int64_t at = where.at(place) + part();
      keys_[j] = *reinterpret_cast<const uint4*>(where.keys + at);
      values_[j] = *reinterpret_cast<const uint4*>(where.values + at);
      shifts_[j] = bias == nullptr ? 0.0F : to_float(bias[place]);
    }
  }

  // `is_held`: what fetch(where) fetched is still there.
  template <class Where>
  __device__ Seen see(const Where& where, const T* q, bool is_held) {
    float query[kKeyPack];
    read_pack(q + part(), query);
    const float scale = rsqrtf(static_cast<float>(head_size));
    Seen seen;
    for (int base = 0; base < end - begin; base += kHeld * step()) {
      if (base > 0 || !is_held) fetch(where, base);
      float scores[kHeld], higher = seen.top;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        scores[j] = -INFINITY;
        if (begin + base + j * step() >= end) continue;  // for all warps
        const int place = place_of(base, j);
        if (newest_key != nullptr && place == end - 1) {
          keys_[j] = *reinterpret_cast<const uint4*>(newest_key + part());
          values_[j] = *reinterpret_cast<const uint4*>(newest_value + part());
          shifts_[j] = 0;
        }
        float score = 0, key[kKeyPack];
        unpack<T>(keys_[j], key);
#pragma unroll
        for (int d = 0; d < kKeyPack; ++d) score = fmaf(query[d], key[d], score);
        for (int other = lanes() / 2; other > 0; other /= 2)
          score += __shfl_xor_sync(0xffffffffU, score, other);
        if (place < end) scores[j] = score * scale + shifts_[j];
        higher = fmaxf(higher, scores[j]);
      }
      for (int other = lanes(); other < 32; other *= 2)
        higher = fmaxf(higher, __shfl_xor_sync(0xffffffffU, higher, other));
      if (higher == -INFINITY) continue;  // nothing to see for this warp
      const float shrink = expf(seen.top - higher);
      seen.top = higher;
      seen.total *= shrink;
#pragma unroll
      for (int d = 0; d < kKeyPack; ++d) seen.sum[d] *= shrink;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        if (scores[j] == -INFINITY) continue;  // what lies there need not be a number
        const float weight = expf(scores[j] - seen.top);
        float value[kKeyPack];
        unpack<T>(values_[j], value);
        seen.total += weight;
#pragma unroll
        for (int d = 0; d < kKeyPack; ++d) seen.sum[d] = fmaf(weight, value[d], seen.sum[d]);
      }
    }
    for (int other = lanes(); other < 32; other *= 2) {
      seen.total += __shfl_xor_sync(0xffffffffU, seen.total, other);
#pragma unroll
      for (int d = 0; d < kKeyPack; ++d)
        seen.sum[d] += __shfl_xor_sync(0xffffffffU, seen.sum[d], other);
    }
    return seen;
  }

  // As this warp's part of kWarps.
  __device__ void put(const Seen& seen, const Parts& to) const {
    const int lane = threadIdx.x, warp = threadIdx.y;
    if (lane < lanes())
#pragma unroll
      for (int d = 0; d < kKeyPack; ++d) to.sums[warp * head_size + part() + d] = seen.sum[d];
    if (lane == 0) {
      to.tops[warp] = seen.top;
      to.totals[warp] = seen.total;
    }
  }

 private:
  __device__ int lanes() const { return head_size / kKeyPack; }  // that have a place
  __device__ int part() const { return threadIdx.x % lanes() * kKeyPack; }
  __device__ int step() const { return kWarps * (32 / lanes()); }
  __device__ int place_of(int base, int j) const {
    return begin + base + j * step() + threadIdx.y * (32 / lanes()) + threadIdx.x / lanes();
  }

  uint4 keys_[kHeld], values_[kHeld];
  float shifts_[kHeld];
};

}  // namespace tutti::speech::cuda
