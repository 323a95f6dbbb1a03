// The kernels as they were, for one comparison.
// Gradients of attention: of keys, values and scores against positions by blocks of 64 keys, which
// take one tile of queries after the other and work out its weights again; then of queries, from the
// gradient of the scores.
#include "tutti/speech/kernels/relative_attention.cuh"

namespace tutti::speech::cuda {
namespace {

// Products of out and its gradient, one for each query and head; 0 for queries that do not exist.
template <int D>
__global__ void products_kernel(AttentionSize size, const Bf16* __restrict__ out,
                                const Bf16* __restrict__ grad_out, float* __restrict__ products) {
  constexpr int kLanes = D / kPack;
  const int padded = static_cast<int>(size.blocks) * kTile;
  const std::int64_t unit =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const int head = static_cast<int>(unit % size.heads),
            t = static_cast<int>(unit / size.heads % padded);
  const std::int64_t batch = unit / size.heads / padded;
  float product = 0;
  if (batch < size.batch && t < size.frames) {
    const std::int64_t at =
        ((batch * size.frames + t) * size.heads + head) * D + threadIdx.x % kLanes * kPack;
    float x[kPack], g[kPack];
    read_pack(out + at, x);
    read_pack(grad_out + at, g);
#pragma unroll
    for (int i = 0; i < kPack; ++i) product = fmaf(x[i], g[i], product);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    product += __shfl_xor_sync(0xffffffffU, product, step);
  if (batch < size.batch && threadIdx.x % kLanes == 0)
    products[(batch * size.heads + head) * padded + t] = product;
}

// The tile's gradients lie where its scores lay, so that 16 bytes are 16 bytes; those at a row's ends
// belong to two tiles.
__device__ inline void write_scores(const Bf16* tile, Bf16* to, int columns, int first_key) {
  each_of_scores([&](int row, int n) {
    const int column = first_column(row, first_key) + n, begin = 7 - row % 8, end = begin + kTile;
    if (column >= columns) return;
    const Bf16* from = tile + row * kScoreRow + n;
    Bf16* at = to + row * columns + column;
    if (n >= begin && n + 8 <= end) {
      *reinterpret_cast<int4*>(at) = *reinterpret_cast<const int4*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (n + i >= begin && n + i < end) at[i] = from[i];
    }
  });
}

template <int D>
struct KeyStage {
  Bf16 queries[kVectorTile<D>], gradients[kVectorTile<D>], scores[kScoreTile];
  float sums[kTile], products[kTile];
};

// A warp has 16 keys (rows) and 32 queries (columns) at a time.
template <int D>
__global__ void __launch_bounds__(kThreads, D == 32 ? 4 : 3)
    key_gradients_kernel(RelativeAttention call, RelativeAttentionBack back) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* stages = reinterpret_cast<KeyStage<D>*>(shared);
  const AttentionSize size = call.size;
  const int frames = static_cast<int>(size.frames), columns = static_cast<int>(size.columns);
  const int first_key = blockIdx.x * kTile;
  const Place at{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                 static_cast<int>(size.blocks)};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::int64_t row = size.heads * D, first_frame = at.batch * size.frames,
                     offset = first_frame * row + at.head * D;
  const std::int64_t first_sum =
      static_cast<std::int64_t>(at.batch * size.heads + at.head) * at.blocks * kTile;
  const std::uint8_t* valid = call.valid == nullptr ? nullptr : call.valid + first_frame;
  const int keys = count_keys(valid, frames);
  const int tiles = first_key < keys ? at.blocks : 0;

  const auto copy_stage = [&](int n) {
    if (n >= tiles) return;
    KeyStage<D>& stage = stages[n % 2];
    copy_frames<D>(stage.queries, bf16(call.q) + offset, row, n * kTile, frames);
    copy_frames<D>(stage.gradients, bf16(back.grad_out) + offset, row, n * kTile, frames);
    copy_scores(stage.scores, bf16(call.scores) + score_row(size, at, n) * columns, columns,
                first_key);
    if (threadIdx.x < kTile / 2) {
      const int i = threadIdx.x % (kTile / 4) * 4;
      const bool is_sum = threadIdx.x < kTile / 4;
      copy_later((is_sum ? stage.sums : stage.products) + i,
                 (is_sum ? call.sums : back.products) + first_sum + n * kTile + i, true);
    }
  };
  copy_stage(0);

  const int first = first_key + warp * 16;  // key of the warp
  Half2 key[D / 16][4], value[D / 16][4];
  read_left<D>(key, bf16(call.k) + first_frame * call.k_row + at.head * D, call.k_row, first,
               frames);
  read_left<D>(value, bf16(call.v) + first_frame * call.v_row + at.head * D, call.v_row, first,
               frames);
  const float scale = rsqrtf(static_cast<float>(D));
  const Drops drops(call.dropout);
  float grad_k[D / 8][4] = {}, grad_v[D / 8][4] = {};

  for (int n = 0; n < tiles; ++n) {
    wait_for_copies();
    __syncthreads();
    copy_stage(n + 1);  // all threads are done with what lies there
    KeyStage<D>& stage = stages[n % 2];
#pragma unroll 1
    for (int q0 = 0; q0 < kTile; q0 += 32) {
      float p[4][4] = {}, ds[4][4] = {};
#pragma unroll
      for (int d = 0; d < D / 16; ++d)
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Half2 right[4];
          read_transposed<kVectorRow<D>>(stage.queries, q0 + 16 * m, 16 * d, right);
          multiply_add(p[2 * m], key[d], right[0], right[1]);
          multiply_add(p[2 * m + 1], key[d], right[2], right[3]);
          read_transposed<kVectorRow<D>>(stage.gradients, q0 + 16 * m, 16 * d, right);
          multiply_add(ds[2 * m], value[d], right[0], right[1]);
          multiply_add(ds[2 * m + 1], value[d], right[2], right[3]);
        }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int i = q0 + 16 * m + 2 * t + c % 2, j = warp * 16 + g + c / 2 * 8;
          std::uint32_t h = 0xFFFFFFFFU;
          if (drops.threshold != 0) h = drops.hash(drops.index(size, at, n, i, first_key + j));
#pragma unroll
          for (int far = 0; far < 2; ++far) {
            float &weight = p[2 * m + far][c], &grad = ds[2 * m + far][c];
            Bf16& score = stage.scores[first_score(i + 8 * far) + j];
            const float x = fmaf(weight, scale, to_float(score)) * kLog2E;
            weight = first_key + j < keys ? power_of_two(x - stage.sums[i + 8 * far]) : 0.0F;
            const bool stays = far == 0 ? drops.keeps_first(h) : drops.keeps_second(h);
            const float factor = stays ? call.dropout.scale : 0.0F;
            grad = weight * (grad * factor - stage.products[i + 8 * far]);
            weight *= factor;
            score = from_float<Bf16>(grad);
          }
        }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        Half2 weights[4], grads[4];
        left_of(p[2 * m], p[2 * m + 1], weights);
        left_of(ds[2 * m], ds[2 * m + 1], grads);
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
          Half2 right[4];
          read_plain<kVectorRow<D>>(stage.gradients, q0 + 16 * m, 16 * d, right);
          multiply_add(grad_v[2 * d], weights, right[0], right[1]);
          multiply_add(grad_v[2 * d + 1], weights, right[2], right[3]);
          read_plain<kVectorRow<D>>(stage.queries, q0 + 16 * m, 16 * d, right);
          multiply_add(grad_k[2 * d], grads, right[0], right[1]);
          multiply_add(grad_k[2 * d + 1], grads, right[2], right[3]);
        }
      }
    }
    __syncthreads();
    write_scores(stage.scores, bf16(back.grad_scores) + score_row(size, at, n) * columns, columns,
                 first_key);
  }
  const std::int64_t to = first_frame * back.grad_row + at.head * D;
  write_rows<D>(bf16(back.grad_k) + to, back.grad_row, first, frames, grad_k, scale);
  write_rows<D>(bf16(back.grad_v) + to, back.grad_row, first, frames, grad_v, 1.0F);
}

// Zeros where no key is: left of a query's scores and from key `keys` on.
__device__ inline void write_zeros(Bf16* to, int columns, int keys) {
  const int warp = threadIdx.x / 32;
  for (int r = warp * 16; r < warp * 16 + 16; ++r) {
    const int begin = kTile - 1 - r, end = begin + keys;
    for (int c = threadIdx.x % 32 * 8; c < columns; c += 32 * 8) {
      Bf16* at = to + r * columns + c;
      if (c + 8 <= begin || c >= end) {
        *reinterpret_cast<int4*>(at) = {};
      } else if (c < begin || c + 8 > end) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (c + i < begin || c + i >= end) at[i] = from_float<Bf16>(0.0F);
      }
    }
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    query_gradients_kernel(RelativeAttention call, RelativeAttentionBack back) {
  constexpr int kStage = kVectorTile<D> + kScoreTile;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* stages = reinterpret_cast<Bf16*>(shared);
  const AttentionSize size = call.size;
  const int frames = static_cast<int>(size.frames), columns = static_cast<int>(size.columns);
  const int block = blockIdx.x;
  const Place at{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                 static_cast<int>(gridDim.x)};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::int64_t row = size.heads * D, first_frame = at.batch * size.frames;
  const Bf16* k = bf16(call.k) + first_frame * call.k_row + at.head * D;
  Bf16* grad_scores = bf16(back.grad_scores) + score_row(size, at, block) * columns;
  const std::uint8_t* valid = call.valid == nullptr ? nullptr : call.valid + first_frame;
  const int keys = count_keys(valid, frames), tiles = (keys + kTile - 1) / kTile;

  const auto copy_stage = [&](int n) {
    if (n >= tiles) return;
    Bf16* stage = stages + n % 2 * kStage;
    copy_frames<D>(stage, k, call.k_row, n * kTile, frames);
    copy_scores(stage + kVectorTile<D>, grad_scores, columns, n * kTile);
  };
  copy_stage(0);
  float grad[D / 8][4] = {};
  for (int n = 0; n < tiles; ++n) {
    wait_for_copies();
    __syncthreads();
    copy_stage(n + 1);  // all threads are done with what lies there
    const Bf16* key_tile = stages + n % 2 * kStage;
    const auto* bits = reinterpret_cast<const unsigned short*>(key_tile + kVectorTile<D>) + 2 * t;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Half2 left[4];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int column = 16 * j + part / 2 * 8;
        const auto* pair = bits + first_score(warp * 16 + g + part % 2 * 8) + column;
        // What is not a key may be anything.
        const int first = n * kTile + column + 2 * t;
        left[part] = (first < keys ? pair[0] : 0U) | (first + 1 < keys ? pair[1] : 0U) << 16;
      }
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        Half2 right[4];
        read_plain<kVectorRow<D>>(key_tile, 16 * j, 16 * d, right);
        multiply_add(grad[2 * d], left, right[0], right[1]);
        multiply_add(grad[2 * d + 1], left, right[2], right[3]);
      }
    }
  }
  write_rows<D>(bf16(back.grad_q) + first_frame * row + at.head * D, row, block * kTile + warp * 16,
                frames, grad, rsqrtf(static_cast<float>(D)));
  write_zeros(grad_scores, columns, tiles * kTile);
}

}  // namespace

void relative_attention_back_before(const RelativeAttention& call,
                                    const RelativeAttentionBack& back, Stream stream) {
  const AttentionSize& size = call.size;
  const dim3 grid(static_cast<unsigned>(size.blocks), static_cast<unsigned>(size.heads),
                  static_cast<unsigned>(size.batch));
  with_head_size(size.head_size, [&](auto d) {
    constexpr int D = decltype(d)::value;
    const std::int64_t lanes = size.batch * size.blocks * kTile * size.heads * (D / kPack);
    products_kernel<D><<<parts(lanes, 256), 256, 0, stream>>>(size, bf16(call.out),
                                                              bf16(back.grad_out), back.products);
    constexpr std::size_t key_bytes = 2 * sizeof(KeyStage<D>);
    allow_shared(key_gradients_kernel<D>, key_bytes);
    key_gradients_kernel<D><<<grid, kThreads, key_bytes, stream>>>(call, back);
    constexpr std::size_t query_bytes = 2 * (kVectorTile<D> + kScoreTile) * sizeof(Bf16);
    query_gradients_kernel<D><<<grid, kThreads, query_bytes, stream>>>(call, back);
  });
  check_launch("relative_attention_back");
}

}  // namespace tutti::speech::cuda
