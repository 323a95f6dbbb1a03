#include "tutti/speech/kernels/relative_attention.cuh"

namespace tutti::speech::cuda {
namespace {

// Scores of keys are worked out one tile after the other, with the largest so far and the sum of
// exponentials relative to it.
template <int D, bool kDrops>
__global__ void __launch_bounds__(kThreads, 4) attention_kernel(RelativeAttention call) {
  constexpr int kStage = 2 * kVectorTile<D> + kScoreTile;
  extern __shared__ __align__(16) Bf16 stages[];
  const AttentionSize size = call.size;
  const int frames = static_cast<int>(size.frames), columns = static_cast<int>(size.columns);
  const int block = blockIdx.x, first_query = block * kTile;
  const Place at{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                 static_cast<int>(gridDim.x)};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::int64_t q_row = size.heads * D, first_frame = at.batch * size.frames;
  const Bf16* k = bf16(call.k) + first_frame * call.k_row + at.head * D;
  const Bf16* v = bf16(call.v) + first_frame * call.v_row + at.head * D;
  const Bf16* scores = bf16(call.scores) + score_row(size, at, block) * columns;
  const std::uint8_t* valid = call.valid == nullptr ? nullptr : call.valid + first_frame;
  const int keys = count_keys(valid, frames), tiles = (keys + kTile - 1) / kTile;

  const auto copy_stage = [&](int n) {
    if (n >= tiles) return;
    Bf16* stage = stages + n % 2 * kStage;
    copy_frames<D>(stage, k, call.k_row, n * kTile, frames);
    copy_frames<D>(stage + kVectorTile<D>, v, call.v_row, n * kTile, frames);
    copy_scores(stage + 2 * kVectorTile<D>, scores, columns, n * kTile);
  };
  copy_stage(0);

  Half2 query[D / 16][4];
  read_left<D>(query, bf16(call.q) + first_frame * q_row + at.head * D, q_row,
               first_query + warp * 16, frames);
  const float scale = rsqrtf(static_cast<float>(D)) * kLog2E;
  const Drops drops(call.dropout);
  const int row = warp * 16 + g;
  const std::uint32_t drop_index = drops.index(size, at, block, row, 2 * t);
  float out[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  for (int n = 0; n < tiles; ++n) {
    wait_for_copies();
    __syncthreads();
    copy_stage(n + 1);  // all threads are done with what lies there
    const Bf16* key_tile = stages + n % 2 * kStage;
    const Bf16* value_tile = key_tile + kVectorTile<D>;
    const Bf16* score_tile = value_tile + kVectorTile<D>;

    float s[8][4] = {};
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Half2 right[4];
        read_transposed<kVectorRow<D>>(key_tile, 16 * j, 16 * d, right);
        multiply_add(s[2 * j], query[d], right[0], right[1]);
        multiply_add(s[2 * j + 1], query[d], right[2], right[3]);
      }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bf16* add = score_tile + first_score(row + 8 * half) + 2 * t;
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[j][2 * half + c];
          x = fmaf(x, scale, to_float(add[8 * j + c]) * kLog2E);
        }
    }
    if ((n + 1) * kTile > keys) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (n * kTile + 8 * j + 2 * t + c % 2 >= keys) s[j][c] = -INFINITY;
    }
    float higher[2] = {top[0], top[1]};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        higher[half] = fmaxf(higher[half], fmaxf(s[j][2 * half], s[j][2 * half + 1]));
      // The four lanes of a row; a tile has at least one key, so this is finite.
      higher[half] = fmaxf(higher[half], __shfl_xor_sync(0xffffffffU, higher[half], 1));
      higher[half] = fmaxf(higher[half], __shfl_xor_sync(0xffffffffU, higher[half], 2));
      const float shrink = power_of_two(top[half] - higher[half]);
      top[half] = higher[half];
      sum[half] *= shrink;
#pragma unroll
      for (int d = 0; d < D / 8; ++d) {
        out[d][2 * half] *= shrink;
        out[d][2 * half + 1] *= shrink;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[j][2 * half + c];
          x = power_of_two(x - higher[half]);
          sum[half] += x;
        }
    }
    if constexpr (kDrops) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const std::uint32_t h = drops.hash(drop_index + n * kTile + 8 * j + c);
          if (!drops.keeps_first(h)) s[j][c] = 0;
          if (!drops.keeps_second(h)) s[j][2 + c] = 0;
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Half2 weights[4];
      left_of(s[2 * j], s[2 * j + 1], weights);
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        Half2 right[4];
        read_plain<kVectorRow<D>>(value_tile, 16 * j, 16 * d, right);
        multiply_add(out[2 * d], weights, right[0], right[1]);
        multiply_add(out[2 * d + 1], weights, right[2], right[3]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffU, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffU, sum[half], 2);
    const bool exists = first_query + row + 8 * half < frames && sum[half] > 0;
    const float factor = exists ? call.dropout.scale / sum[half] : 0.0F;
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      out[d][2 * half] *= factor;
      out[d][2 * half + 1] *= factor;
    }
    // Weights of a query that does not exist come out as 0 in the backward pass.
    if (t == 0)
      call.sums[(static_cast<std::int64_t>(at.batch * size.heads + at.head) * at.blocks + block) *
                    kTile +
                row + 8 * half] = exists ? top[half] + log2f(sum[half]) : INFINITY;
  }
  write_rows<D>(bf16(call.out) + first_frame * q_row + at.head * D, q_row, first_query + warp * 16,
                frames, out, 1.0F);
}

}  // namespace

bool knows_head_size(std::int64_t head_size) { return head_size == 32 || head_size == 64; }

void relative_attention(const RelativeAttention& call, Stream stream) {
  const dim3 grid(static_cast<unsigned>(call.size.blocks), static_cast<unsigned>(call.size.heads),
                  static_cast<unsigned>(call.size.batch));
  with_head_size(call.size.head_size, [&](auto d) {
    constexpr int D = decltype(d)::value;
    constexpr std::size_t bytes = 2 * (2 * kVectorTile<D> + kScoreTile) * sizeof(Bf16);
    const auto kernel =
        call.dropout.threshold != 0 ? attention_kernel<D, true> : attention_kernel<D, false>;
    allow_shared(kernel, bytes);
    kernel<<<grid, kThreads, bytes, stream>>>(call);
  });
  check_launch("relative_attention");
}

}  // namespace tutti::speech::cuda
