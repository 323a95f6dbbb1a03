// Norm, q, and attention to the memory in one kernel.
#include "tutti/speech/kernels/head_products.cuh"

namespace tutti::speech::cuda {
namespace {

// Every block has an eighth of the frames, for all queries, and gives an eighth of the outputs.
template <class T, int kHeadSize>
struct MemoryShared {
  HeadProducts<T, 1, kHeadSize> products;
  T* q;  // (rows, head_size)
  ManyParts<kHeadWarps> warps;
  ManyParts<kBlocks> blocks;
  __host__ __device__ MemoryShared(Pieces& pieces, int rows, int in)
      : products(pieces, rows, in),
        q(pieces.take<T>(rows * kHeadSize)),
        warps(pieces, rows, kHeadSize),
        blocks(pieces, rows, kHeadSize / kBlocks) {}
};

template <class T, int kHeadSize>
__global__ void __launch_bounds__(kHeadThreads, kHeadSize <= 64 ? 2 : 1)
    norm_attend_memory_kernel(const __grid_constant__ NormProducts products,
                              const __grid_constant__ AttendMemory call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kHeld = 6;
  using Products = HeadProducts<T, 1, kHeadSize>;
  constexpr int kPart = Products::kPart;
  extern __shared__ int4 dynamic[];
  Pieces pieces{reinterpret_cast<char*>(dynamic)};
  const int rows = static_cast<int>(products.rows), queries = static_cast<int>(call.queries);
  MemoryShared<T, kHeadSize> shared(pieces, rows, static_cast<int>(products.in));
  const int head = blockIdx.x / kBlocks, rank = blockIdx.x % kBlocks;
  const int mine = threadIdx.y * 32 + threadIdx.x;
  const int frames = static_cast<int>(call.frames);
  const int share = (frames + kBlocks - 1) / kBlocks;
  cluster_arrive();
  let_next_begin();
  shared.products.fetch(products, head * kHeadSize + rank * kPart);
  Attend<kHeadWarps, kHeld, T> attend;
  attend.begin = rank * share;
  attend.end = min(attend.begin + share, frames);
  attend.head_size = kHeadSize;
  attend.bias = static_cast<const T*>(call.bias);
  attend.fetch(memory_of<T>(call, 0, head));
  __syncthreads();
  wait_for_previous();
  shared.products.multiply(products);

  cluster_wait();  // all have begun
  for (int at = mine; at < rows * kHeadSize; at += kHeadThreads) {
    const int row = at / kHeadSize, o = at % kPart, to = at % kHeadSize / kPart;
    *in_block(shared.q + row * kHeadSize + rank * kPart + o, to) = shared.products.value(row, o);
  }
  cluster_sync();

  int held = 0;  // the utterance whose frames this block has in registers
  for (int row = 0; row < rows; ++row) {
    const int utterance = row / queries;
    if (call.bias != nullptr)
      attend.bias =
          static_cast<const T*>(call.bias) + static_cast<std::int64_t>(utterance) * frames;
    attend.put(attend.see(memory_of<T>(call, utterance, head), shared.q + row * kHeadSize,
                          utterance == held),
               shared.warps.of(row));
    held = attend.fits() ? utterance : -1;
  }
  __syncthreads();
  for (int at = mine; at < rows * kHeadSize; at += kHeadThreads) {
    const int row = at / kHeadSize, d = at % kHeadSize, to = d / kPart;
    const Joined joined = join_parts<kHeadWarps>(shared.warps.of(row), d, kHeadSize);
    const Parts there = shared.blocks.of(row);
    *in_block(there.sums + rank * kPart + d % kPart, to) = joined.sum;
    if (d % kPart == 0) {  // once for each block
      *in_block(there.tops + rank, to) = joined.top;
      *in_block(there.totals + rank, to) = joined.total;
    }
  }
  cluster_sync();  // nobody writes into another block after this
  for (int at = mine; at < rows * kPart; at += kHeadThreads) {
    const int row = at / kPart, o = at % kPart;
    const Joined joined = join_parts<kBlocks>(shared.blocks.of(row), o, kPart);
    static_cast<T*>(call.out)[(row * call.heads + head) * kHeadSize + rank * kPart + o] =
        from_float<T>(joined.sum / joined.total);
  }
#endif
}

template <class T, int kHeadSize>
struct Kernel {
  using Shared = MemoryShared<T, kHeadSize>;
  static constexpr auto run = norm_attend_memory_kernel<T, kHeadSize>;
};

}  // namespace

bool can_norm_attend_memory(Number type, std::int64_t in, std::int64_t head_size) {
  return can_run_head_kernel<Kernel>(type, in, head_size);
}

void norm_attend_memory(Number type, const NormProducts& products, const AttendMemory& attend,
                        Stream stream) {
  run_head_kernel<Kernel>(type, products, attend, attend.heads, attend.head_size, stream);
  check_launch("norm_attend_memory");
}

}  // namespace tutti::speech::cuda
