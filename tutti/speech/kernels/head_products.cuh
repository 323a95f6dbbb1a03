// A norm, its products and attention in one kernel: eight blocks for each head. Each makes an eighth
// of the head's outputs and gives them to the blocks that attend. What is of the kernel before this one
// is read, and anything is written, after wait_for_previous(); weights, keys and values of before are
// on their way by then.
#pragma once

#include "tutti/speech/kernels/cluster.cuh"
#include "tutti/speech/kernels/few_queries.cuh"
#include "tutti/speech/kernels/few_rows.cuh"

namespace tutti::speech::cuda {

constexpr int kBlocks = 8;  // of a cluster, the most that all GPUs with clusters have room for
constexpr int kHeadWarps = 8, kHeadThreads = kHeadWarps * 32;
constexpr int kMaxIn = kMaxPacks * 128;

// Pieces of shared memory, one after the other; on the host only their sizes matter.
struct Pieces {
  char* base;
  std::size_t used = 0;
  template <class E>
  __host__ __device__ E* take(int count) {
    E* piece = reinterpret_cast<E*>(base + used);
    used += (count * sizeof(E) + 15) / 16 * 16;
    return piece;
  }
};

// Softmaxes of several queries, each in kParts parts.
template <int kParts>
struct ManyParts {
  Parts all;
  int size;  // sums of a part
  __host__ __device__ ManyParts(Pieces& pieces, int queries, int size)
      : all{pieces.take<float>(queries * kParts), pieces.take<float>(queries * kParts),
            pieces.take<float>(queries * kParts * size)},
        size(size) {}
  __device__ Parts of(int query) const {
    return {all.tops + query * kParts, all.totals + query * kParts,
            all.sums + query * kParts * size};
  }
};

// kCount products with a head's outputs of as many matrices; those of this block.
template <class T, int kCount, int kHeadSize>
struct HeadProducts {
  static constexpr int kPart = kHeadSize / kBlocks;  // outputs of a matrix
  static constexpr int kEach = kCount * kPart;       // outputs of a row
  static constexpr int kTilesOfPart = (kPart + kTile - 1) / kTile;
  static constexpr int kTiles = kCount * kTilesOfPart, kOut = kTiles * kTile;
  static constexpr int kBatch = kMaxIn / (kChunk * kHeadWarps);

  T *staged, *parameters;
  float *partials, *biases;
  WeightTiles<T, kTiles, kBatch> weights;

  __host__ __device__ HeadProducts(Pieces& pieces, int rows, int in)
      : staged(pieces.take<T>(rows * (in + kPadding))),
        parameters(pieces.take<T>(2 * in)),
        partials(pieces.take<float>(kHeadWarps * kRows * kOut)),
        biases(pieces.take<float>(kEach)) {}

  // Before the kernel before this one has ended. `from`: this block's first output.
  __device__ void fetch(const NormProducts& a, int from) {
    const int in = static_cast<int>(a.in), mine = threadIdx.y * 32 + threadIdx.x;
    const int g = threadIdx.x / 4;
    weights.fetch(
        [&](int tile) {
          const int row = from + min(tile % kTilesOfPart * kTile + g, kPart - 1);
          return static_cast<const T*>(a.outputs[tile / kTilesOfPart].weight) +
                 static_cast<std::int64_t>(row) * in + first_input(in);
        },
        0, chunks(in));
    if (mine < kEach)
      biases[mine] =
          to_float(static_cast<const T*>(a.outputs[mine / kPart].bias)[from + mine % kPart]);
    copy_parameters<T>(a.norm_weight, a.norm_bias, in, parameters);
  }

  // After it has; value() knows the results then.
  __device__ void multiply(const NormProducts& a) const {
    const int in = static_cast<int>(a.in), rows = static_cast<int>(a.rows);
    stage_normed(NormRows{a.x, rows, in, a.eps}, parameters, staged);
    __syncthreads();
    const auto read_x = [&](int row, int chunk) {
      if (row >= rows) return make_uint4(0, 0, 0, 0);
      const T* x = staged + row * (in + kPadding) + first_input(in) + chunk * kChunk;
      return *reinterpret_cast<const uint4*>(x);
    };
    float sum[kTiles][4] = {};
    weights.multiply_with(read_x, 0, chunks(in), sum);
    put_partials(sum, partials + threadIdx.y * kRows * kOut);
    __syncthreads();
  }

  // Output `each` of a row: kPart of the first matrix, of the second ...
  __device__ T value(int row, int each) const {
    const int column = each / kPart * kTilesOfPart * kTile + each % kPart;
    float value = biases[each];
#pragma unroll
    for (int w = 0; w < kHeadWarps; ++w) value += partials[(w * kRows + row) * kOut + column];
    return from_float<T>(value);
  }

 private:
  __device__ static int chunks(int in) { return in / (kChunk * kHeadWarps); }  // of a warp
  __device__ static int first_input(int in) {
    return threadIdx.y * chunks(in) * kChunk + 8 * (threadIdx.x % 4);
  }
};

// How a kernel is launched that has this in its shared memory.
template <class Shared>
EarlyLaunch head_launch(std::int64_t rows, std::int64_t in, std::int64_t heads, Stream stream) {
  Pieces pieces{nullptr};
  const Shared shared(pieces, static_cast<int>(rows), static_cast<int>(in));
  return {dim3(static_cast<unsigned>(heads * kBlocks)), dim3(32, kHeadWarps), pieces.used, stream,
          kBlocks};
}

// What such a kernel is allowed to have; always as much, as other threads launch too.
template <class Shared>
std::size_t most_shared() {
  return head_launch<Shared>(kMostFewRows, kMaxIn, 1, nullptr).config().dynamicSmemBytes;
}

// Calls f with a Kernel<T, head_size>: it has the kernel, `run`, and the type of its shared memory.
template <template <class, int> class Kernel, class F>
void with_head_kernel(Number type, std::int64_t head_size, F f) {
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    if (head_size == 32) return f(Kernel<T, 32>());
    if (head_size == 64) return f(Kernel<T, 64>());
    if (head_size == 128) return f(Kernel<T, 128>());
    throw std::runtime_error("heads of size " + std::to_string(head_size) + " are not known");
  });
}

template <template <class, int> class Kernel>
bool can_run_head_kernel(Number type, std::int64_t in, std::int64_t head_size) {
  if (!few_queries_known(head_size) || in % (kChunk * kHeadWarps) != 0 || in > kMaxIn) return false;
  bool can = false;
  with_head_kernel<Kernel>(type, head_size, [&](auto kernel) {
    can = can_cluster(kernel.run, head_launch<typename decltype(kernel)::Shared>(
                                      kMostFewRows, kMaxIn, /*heads=*/1, nullptr));
  });
  return can;
}

template <template <class, int> class Kernel, class Call>
void run_head_kernel(Number type, const NormProducts& products, const Call& call,
                     std::int64_t heads, std::int64_t head_size, Stream stream) {
  with_head_kernel<Kernel>(type, head_size, [&](auto kernel) {
    const auto launch =
        head_launch<typename decltype(kernel)::Shared>(products.rows, products.in, heads, stream);
    allow_shared(kernel.run, most_shared<typename decltype(kernel)::Shared>());
    launch.run(kernel.run, products, call);
  });
}

}  // namespace tutti::speech::cuda
