#include "tutti/speech/kernels/few_rows.h"

#include <algorithm>

#include "tutti/speech/kernels/early.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kRows = static_cast<int>(kMostFewRows);
constexpr int kTile = 8;      // outputs that a warp multiplies at a time
constexpr int kChunk = 32;    // inputs that a warp multiplies at a time, 8 for each lane
constexpr int kMaxPacks = 8;  // of four, that a lane has of a row to be normalised
constexpr int kPadding = 32;  // elements between rows in shared memory: no bank is asked twice
constexpr int kMaxBlocks = 132 * 2;  // about what a large GPU has room for

struct Arguments {
  const void* x;
  const void *norm_weight, *norm_bias;
  float eps;
  Outputs outputs[3];
  int rows, in, out;
  int units;  // of one output, and of all: what a block does at a time
  int all_units;
  bool relu;
};

// sum (16, 8) += x (16, 16) w' (8, 16), as the tensor cores hold them.
template <class T>
__device__ inline void multiply(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Rows of x, normalised, into shared memory; a warp has a row. `parameters`: weight and bias.
template <class T>
__device__ void stage_normed(const Arguments& a, const T* parameters, T* staged) {
  const int lane = threadIdx.x, packs = a.in / 128;
  for (int row = threadIdx.y; row < a.rows; row += blockDim.y) {
    const float* x = static_cast<const float*>(a.x) + static_cast<std::int64_t>(row) * a.in;
    float v[kMaxPacks][4];
    float sum = 0, squares = 0;
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p)
      if (p < packs) read_pack(x + (p * 32 + lane) * 4, v[p]);
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p)
      if (p < packs) sum += (v[p][0] + v[p][1]) + (v[p][2] + v[p][3]);
    const float mean = warp_sum(sum) / static_cast<float>(a.in);
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (p < packs) squares = fmaf(v[p][i] - mean, v[p][i] - mean, squares);
    const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(a.in) + a.eps);
#pragma unroll
    for (int p = 0; p < kMaxPacks; ++p) {
      if (p >= packs) break;
      const int at = (p * 32 + lane) * 4;
      float w[4], b[4];
      read_pack(parameters + at, w);
      read_pack(parameters + a.in + at, b);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[p][i] = fmaf((v[p][i] - mean) * rstd, w[i], b[i]);
      write_pack(staged + row * (a.in + kPadding) + at, v[p]);
    }
  }
}

// The warps of a block share the inputs, the lanes of a warp the outputs of a tile and the rest of
// the inputs: lane 4 g + t has inputs 8 t .. 8 t + 7 of a chunk, of output g and of rows g and g + 8.
// In which order tensor cores see the inputs does not matter, as long as x and weights agree. All
// that is not of the kernel before this one is on its way before that one has ended.
template <class T, bool kNorm, int kTiles, class Y>
__global__ void __launch_bounds__(kNorm ? 256 : 512, kNorm ? 2 : 1) products(const Arguments a) {
  constexpr int kBatch = kNorm ? 4 : 8;  // chunks whose weights are on their way at once
  constexpr int kWarps = kNorm ? 8 : 16;
  constexpr int kOut = kTiles * kTile;
  extern __shared__ int4 dynamic[];
  __shared__ float partials[kWarps][kRows * kOut];
  __shared__ float biases[kOut];
  T* staged = reinterpret_cast<T*>(dynamic);
  const int lane = threadIdx.x, warp = threadIdx.y, warps = blockDim.y;
  const int mine = warp * 32 + lane, threads = warps * 32;
  const int g = lane / 4, t = lane % 4;
  const int chunks = a.in / (kChunk * warps);
  const int first = warp * chunks * kChunk + 8 * t;

  const auto output_of = [&](int unit) {
    return unit < a.units ? a.outputs[0] : unit < 2 * a.units ? a.outputs[1] : a.outputs[2];
  };
  const auto place_of = [&](int unit) { return unit % a.units * kOut; };
  uint4 weights[kTiles][kBatch];
  const auto fetch = [&](int unit, int from) {
    const T* matrix = static_cast<const T*>(output_of(unit).weight);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = min(place_of(unit) + tile * kTile + g, a.out - 1);
      const T* w = matrix + static_cast<std::int64_t>(row) * a.in + first;
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (from + i < chunks)
          weights[tile][i] = __ldcs(reinterpret_cast<const uint4*>(w + (from + i) * kChunk));
    }
  };
  const auto fetch_bias = [&](int unit) {
    if (mine < kOut)
      biases[mine] = to_float(
          static_cast<const T*>(output_of(unit).bias)[min(place_of(unit) + mine, a.out - 1)]);
  };
  const auto read_x = [&](int row, int chunk) {
    if (row >= a.rows) return make_uint4(0, 0, 0, 0);
    const T* x = kNorm ? staged + row * (a.in + kPadding)
                       : static_cast<const T*>(a.x) + static_cast<std::int64_t>(row) * a.in;
    return *reinterpret_cast<const uint4*>(x + first + chunk * kChunk);
  };

  let_next_begin();
  fetch(blockIdx.x, 0);
  fetch_bias(blockIdx.x);
  if constexpr (kNorm) {
    T* parameters = staged + a.rows * (a.in + kPadding);
    for (int at = mine * 8; at < a.in; at += threads * 8) {
      *reinterpret_cast<uint4*>(parameters + at) =
          *reinterpret_cast<const uint4*>(static_cast<const T*>(a.norm_weight) + at);
      *reinterpret_cast<uint4*>(parameters + a.in + at) =
          *reinterpret_cast<const uint4*>(static_cast<const T*>(a.norm_bias) + at);
    }
    __syncthreads();
    wait_for_previous();
    stage_normed(a, parameters, staged);
    __syncthreads();
  } else {
    wait_for_previous();
  }
  for (int unit = blockIdx.x; unit < a.all_units; unit += gridDim.x) {
    const Outputs output = output_of(unit);
    const auto y_at = [&](int at) {
      return static_cast<Y*>(output.y) + static_cast<std::int64_t>(at / kOut) * a.out +
             place_of(unit) + at % kOut;
    };
    const auto is_there = [&](int at) {
      return at / kOut < a.rows && place_of(unit) + at % kOut < a.out;
    };
    float before = 0;  // a block that adds has a thread for each result
    if constexpr (!kNorm)
      if (is_there(mine)) before = *y_at(mine);
    float sum[kTiles][4] = {};
    for (int from = 0; from < chunks; from += kBatch) {
      if (from > 0) fetch(unit, from);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (from + i >= chunks) break;
        const uint4 low = read_x(g, from + i), high = read_x(g + 8, from + i);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 w = weights[tile][i];
          multiply<T>(sum[tile], low.x, high.x, low.y, high.y, w.x, w.y);
          multiply<T>(sum[tile], low.z, high.z, low.w, high.w, w.z, w.w);
        }
      }
    }
    if (unit + gridDim.x < a.all_units) fetch(unit + gridDim.x, 0);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float* to = partials[warp] + g * kOut + tile * kTile + 2 * t;
      to[0] = sum[tile][0];
      to[1] = sum[tile][1];
      to[8 * kOut] = sum[tile][2];
      to[8 * kOut + 1] = sum[tile][3];
    }
    __syncthreads();
    for (int at = mine; at < a.rows * kOut; at += threads) {
      if (!is_there(at)) continue;
      float value = biases[at % kOut];
      for (int w = 0; w < warps; ++w) value += partials[w][at];
      if (a.relu) value = fmaxf(value, 0.0F);
      *y_at(at) = from_float<Y>(value + before);
    }
    if (unit + gridDim.x >= a.all_units) break;
    __syncthreads();
    fetch_bias(unit + gridDim.x);
  }
}

template <class T>
__global__ void embed(const std::int64_t* tokens, const std::int64_t* position, const T* embedding,
                      const T* table, float scale, float* x, int size) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t token = tokens[blockIdx.x], place = *position;
  for (int d = threadIdx.x; d < size; d += blockDim.x)
    x[static_cast<std::int64_t>(blockIdx.x) * size + d] =
        fmaf(to_float(embedding[token * size + d]), scale, to_float(table[place * size + d]));
}

template <class F>
void with_half_type(Number number, F f) {
  if (number == Number::kFloat) throw std::runtime_error("few_rows: float is not known");
  if (number == Number::kHalf) return f(static_cast<__half*>(nullptr));
  f(static_cast<__nv_bfloat16*>(nullptr));
}

int warps_for(std::int64_t in, int most) {
  const std::int64_t chunks = in / kChunk;
  for (int warps = most; warps > 4; --warps)
    if (chunks % warps == 0) return warps;
  return 4;
}

// As many units for each.
unsigned blocks_for(int units) { return parts(units, parts(units, kMaxBlocks)); }

Arguments arguments_of(std::int64_t rows, std::int64_t in, std::int64_t out, int count, int tiles) {
  Arguments a{};
  a.rows = static_cast<int>(rows);
  a.in = static_cast<int>(in);
  a.out = static_cast<int>(out);
  a.units = static_cast<int>(parts(out, tiles * kTile));
  a.all_units = count * a.units;
  return a;
}

template <class T, int kTiles, class Y>
void launch_norm_products(const NormProducts& call, Stream stream) {
  Arguments a = arguments_of(call.rows, call.in, call.out, call.count, kTiles);
  a.x = call.x;
  a.norm_weight = call.norm_weight;
  a.norm_bias = call.norm_bias;
  a.eps = call.eps;
  std::copy(call.outputs, call.outputs + 3, a.outputs);
  a.relu = call.relu;
  const dim3 block(32, static_cast<unsigned>(warps_for(call.in, 8)));
  const std::size_t shared =
      static_cast<std::size_t>(call.rows * (call.in + kPadding) + 2 * call.in) * sizeof(T);
  launch_early(products<T, true, kTiles, Y>, blocks_for(a.all_units), block, shared, stream, a);
}

}  // namespace

bool few_rows_known(std::int64_t in, bool with_norm) {
  return in % 128 == 0 && (!with_norm || in <= 128 * kMaxPacks);
}

void embed_rows(Number type, const EmbedRows& call, Stream stream) {
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    embed<T><<<static_cast<unsigned>(call.rows), 256, 0, stream>>>(
        call.tokens, call.position, static_cast<const T*>(call.embedding),
        static_cast<const T*>(call.table), call.scale, call.x, static_cast<int>(call.size));
  });
  check_launch("embed_rows");
}

void norm_products(Number type, const NormProducts& call, Stream stream) {
  // Small matrices are spread over the whole GPU, of larger ones a block has more on its way.
  const bool is_large = call.count * call.out >= kMaxBlocks * kTile;
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    if (call.float_y)
      launch_norm_products<T, 2, float>(call, stream);
    else if (is_large)
      launch_norm_products<T, 2, T>(call, stream);
    else
      launch_norm_products<T, 1, T>(call, stream);
  });
  check_launch("norm_products");
}

void add_product(Number type, const AddProduct& call, Stream stream) {
  Arguments a = arguments_of(call.rows, call.in, call.out, 1, 1);
  a.x = call.x;
  a.outputs[0] = call.output;
  const dim3 block(32, static_cast<unsigned>(warps_for(call.in, call.in >= 2048 ? 16 : 8)));
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    launch_early(products<T, false, 1, float>, blocks_for(a.all_units), block, 0, stream, a);
  });
  check_launch("add_product");
}

}  // namespace tutti::speech::cuda
