#include "tutti/speech/kernels/few_rows.h"

#include <algorithm>

#include "tutti/speech/kernels/few_rows.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kMaxBlocks = 132 * 2;            // about what a large GPU has room for
constexpr std::size_t kMaxCopied = 64 * 1024;  // bytes of x; every GPU has room for them

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

// How a block reads x: normalised and copied to shared memory, or where it is.
enum class Read { kNormed, kCopied, kInPlace };

// All that is not of the kernel before this one is on its way before that one has ended. Copies of x
// need few registers, which leaves room for the kernel after this one to do the same.
template <class T, Read kRead, int kTiles, class Y>
__global__ void __launch_bounds__(kRead == Read::kNormed ? 256 : 512,
                                  kRead == Read::kInPlace ? 1 : 2) products(const Arguments a) {
  constexpr bool kNorm = kRead == Read::kNormed;
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
  WeightTiles<T, kTiles, kBatch> weights;
  const auto fetch = [&](int unit, int from) {
    weights.fetch(
        [&](int tile) {
          const int row = min(place_of(unit) + tile * kTile + g, a.out - 1);
          return static_cast<const T*>(output_of(unit).weight) +
                 static_cast<std::int64_t>(row) * a.in + first;
        },
        from, chunks);
  };
  const auto fetch_bias = [&](int unit) {
    if (mine < kOut)
      biases[mine] = to_float(
          static_cast<const T*>(output_of(unit).bias)[min(place_of(unit) + mine, a.out - 1)]);
  };
  const auto read_x = [&](int row, int chunk) {
    if (row >= a.rows) return make_uint4(0, 0, 0, 0);
    const T* x = kRead == Read::kInPlace
                     ? static_cast<const T*>(a.x) + static_cast<std::int64_t>(row) * a.in
                     : staged + row * (a.in + kPadding);
    return *reinterpret_cast<const uint4*>(x + first + chunk * kChunk);
  };

  const auto y_at = [&](int unit, int at) {
    return static_cast<Y*>(output_of(unit).y) + static_cast<std::int64_t>(at / kOut) * a.out +
           place_of(unit) + at % kOut;
  };
  const auto is_there = [&](int unit, int at) {
    return at / kOut < a.rows && place_of(unit) + at % kOut < a.out;
  };
  float before = 0;  // a block that adds has a thread for each result
  const auto fetch_sum = [&](int unit) {
    if constexpr (!kNorm)
      if (is_there(unit, mine)) before = *y_at(unit, mine);
  };

  let_next_begin();
  fetch(blockIdx.x, 0);
  fetch_bias(blockIdx.x);
  if constexpr (kNorm) {
    const NormRows rows{static_cast<const float*>(a.x), a.rows, a.in, a.eps};
    T* parameters = staged + a.rows * (a.in + kPadding);
    copy_parameters<T>(a.norm_weight, a.norm_bias, a.in, parameters);
    __syncthreads();
    wait_for_previous();
    stage_normed(rows, parameters, staged);
  } else {
    wait_for_previous();
    fetch_sum(blockIdx.x);
    if constexpr (kRead == Read::kCopied)
      copy_rows(static_cast<const T*>(a.x), a.rows, a.in, staged);
  }
  __syncthreads();
  for (int unit = blockIdx.x; unit < a.all_units; unit += gridDim.x) {
    float sum[kTiles][4] = {};
    for (int from = 0; from < chunks; from += kBatch) {
      if (from > 0) fetch(unit, from);
      weights.multiply_with(read_x, from, chunks, sum);
    }
    if (unit + gridDim.x < a.all_units) fetch(unit + gridDim.x, 0);
    put_partials(sum, partials[warp]);
    __syncthreads();
    for (int at = mine; at < a.rows * kOut; at += threads) {
      if (!is_there(unit, at)) continue;
      float value = biases[at % kOut];
      for (int w = 0; w < warps; ++w) value += partials[w][at];
      if (a.relu) value = fmaxf(value, 0.0F);
      *y_at(unit, at) = from_float<Y>(value + before);
    }
    if (unit + gridDim.x >= a.all_units) break;
    __syncthreads();
    fetch_bias(unit + gridDim.x);
    fetch_sum(unit + gridDim.x);
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
  launch_early(products<T, Read::kNormed, kTiles, Y>, blocks_for(a.all_units), block, shared,
               stream, a);
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
  const std::size_t copied =
      static_cast<std::size_t>(call.rows * (call.in + kPadding)) * sizeof(__half);
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    const auto launch = [&](auto kernel, std::size_t shared) {
      allow_shared(kernel, kMaxCopied);  // always as much: other threads launch too
      launch_early(kernel, blocks_for(a.all_units), block, shared, stream, a);
    };
    if (copied <= kMaxCopied)
      launch(products<T, Read::kCopied, 1, float>, copied);
    else
      launch(products<T, Read::kInPlace, 1, float>, 0);
  });
  check_launch("add_product");
}

}  // namespace tutti::speech::cuda
