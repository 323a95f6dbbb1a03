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

// The tile's gradients lie where its scores lay. A row begins anywhere within 16 bytes and its ends
// belong to two tiles, so a warp writes it in two pieces, one number for each lane: 16 bytes at a time
// and single numbers at the ends were twice as many writes.
__device__ inline void write_scores(const Bf16* tile, Bf16* to, int columns, int first_key) {
  constexpr int kAtOnce = 8;
  const int lane = threadIdx.x % 32, begin = threadIdx.x / 32 * 16;
#pragma unroll 1
  for (int first = begin; first < begin + 16; first += kAtOnce) {
    Bf16 low[kAtOnce], high[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const Bf16* from = tile + first_score(first) + r * (kScoreRow - 1) + lane;
      low[r] = from[0];
      high[r] = from[32];
    }
    int column = first_key + kTile - 1 - first + lane;
    Bf16* at = to + first * columns + column;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r, --column, at += columns - 1) {
      if (column < columns) at[0] = low[r];
      if (column + 32 < columns) at[32] = high[r];
    }
  }
}

template <int D>
struct KeyStage {
  Bf16 queries[kVectorTile<D>], gradients[kVectorTile<D>], scores[kScoreTile];
  float sums[kTile], products[kTile];
};

// A warp has 16 keys (rows) and 16 queries (columns) at a time.
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
  // The thread's first key in the block; elements c of its results are of queries 2 t + c % 2 (and 8
  // further) and of keys mine + c / 2 * 8.
  const int mine = warp * 16 + g;
  const std::uint32_t drop_row = at.blocks * kTile;
  const int my_score = first_score(2 * t) + mine;
  const auto score_at = [&](int q, int far, int c) {  // the next row's begin one place earlier
    return my_score + (q + 8 * far) * kScoreRow + c % 2 * (kScoreRow - 1) + c / 2 * 8;
  };
  float grad_k[D / 8][4] = {}, grad_v[D / 8][4] = {};

  for (int n = 0; n < tiles; ++n) {
    wait_for_copies();
    __syncthreads();
    copy_stage(n + 1);  // all threads are done with what lies there
    KeyStage<D>& stage = stages[n % 2];
    const std::uint32_t drop = drops.index(size, at, n, 2 * t, first_key + mine);
#pragma unroll
    for (int q = 0; q < kTile; q += 16) {
      // Read before anything is written: nothing waits for a write, and they arrive meanwhile.
      float score[2][4];
      float2 sum[2], product[2];
#pragma unroll
      for (int far = 0; far < 2; ++far) {
        sum[far] = *reinterpret_cast<const float2*>(stage.sums + q + 8 * far + 2 * t);
        product[far] = *reinterpret_cast<const float2*>(stage.products + q + 8 * far + 2 * t);
#pragma unroll
        for (int c = 0; c < 4; ++c) score[far][c] = to_float(stage.scores[score_at(q, far, c)]);
      }
      float p[2][4] = {}, ds[2][4] = {};
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        Half2 right[4];
        read_transposed<kVectorRow<D>>(stage.queries, q, 16 * d, right);
        multiply_add(p[0], key[d], right[0], right[1]);
        multiply_add(p[1], key[d], right[2], right[3]);
        read_transposed<kVectorRow<D>>(stage.gradients, q, 16 * d, right);
        multiply_add(ds[0], value[d], right[0], right[1]);
        multiply_add(ds[1], value[d], right[2], right[3]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const std::uint32_t h = drops.hash(drop + (q / 2 + c % 2) * drop_row + c / 2 * 8);
#pragma unroll
        for (int far = 0; far < 2; ++far) {
          float &weight = p[far][c], &grad = ds[far][c];
          const float x = fmaf(weight, scale, score[far][c]) * kLog2E;
          const float log_sum = c % 2 == 0 ? sum[far].x : sum[far].y;
          weight = first_key + mine + c / 2 * 8 < keys ? power_of_two(x - log_sum) : 0.0F;
          const bool stays = far == 0 ? drops.keeps_first(h) : drops.keeps_second(h);
          const float factor = stays ? call.dropout.scale : 0.0F;
          grad = weight * (grad * factor - (c % 2 == 0 ? product[far].x : product[far].y));
          weight *= factor;
        }
      }
      Half2 weights[4], grads[4];
      left_of(p[0], p[1], weights);
      left_of(ds[0], ds[1], grads);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const auto pair = *reinterpret_cast<const __nv_bfloat162*>(&grads[part]);
        stage.scores[score_at(q, part / 2, part % 2 * 2)] = pair.x;
        stage.scores[score_at(q, part / 2, part % 2 * 2 + 1)] = pair.y;
      }
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        Half2 right[4];
        read_plain<kVectorRow<D>>(stage.gradients, q, 16 * d, right);
        multiply_add(grad_v[2 * d], weights, right[0], right[1]);
        multiply_add(grad_v[2 * d + 1], weights, right[2], right[3]);
        read_plain<kVectorRow<D>>(stage.queries, q, 16 * d, right);
        multiply_add(grad_k[2 * d], grads, right[0], right[1]);
        multiply_add(grad_k[2 * d + 1], grads, right[2], right[3]);
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
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Bf16 zero = from_float<Bf16>(0.0F);
  for (int r = warp * 16; r < warp * 16 + 16; ++r) {
    Bf16* row = to + r * columns;
    const int begin = kTile - 1 - r, end = min(begin + keys, columns), whole = (end + 7) / 8 * 8;
    if (lane < begin) row[lane] = zero;
    if (lane + 32 < begin) row[lane + 32] = zero;
    if (end + lane < whole) row[end + lane] = zero;
    for (int c = whole + lane * 8; c < columns; c += 32 * 8) *reinterpret_cast<int4*>(row + c) = {};
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

void relative_attention_back(const RelativeAttention& call, const RelativeAttentionBack& back,
                             Stream stream) {
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
