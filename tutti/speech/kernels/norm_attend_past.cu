// Norm, q, k and v, and attention to the past in one kernel.
#include "tutti/speech/kernels/head_products.cuh"

namespace tutti::speech::cuda {
namespace {

// Row r is attended by block r % 8.
template <class T, int kHeadSize>
struct PastShared {
  HeadProducts<T, 3, kHeadSize> products;
  T* newest;  // (row / 8, q k v, head_size) of this block's rows
  ManyParts<kHeadWarps> warps;
  __host__ __device__ PastShared(Pieces& pieces, int rows, int in)
      : products(pieces, rows, in),
        newest(pieces.take<T>((rows + kBlocks - 1) / kBlocks * 3 * kHeadSize)),
        warps(pieces, (rows + kBlocks - 1) / kBlocks, kHeadSize) {}
};

template <class T, int kHeadSize>
__global__ void __launch_bounds__(kHeadThreads, kHeadSize <= 64 ? 2 : 1)
    norm_attend_past_kernel(const __grid_constant__ NormProducts products,
                            const __grid_constant__ AttendPast call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kHeld = 3;
  using Products = HeadProducts<T, 3, kHeadSize>;
  extern __shared__ int4 dynamic[];
  Pieces pieces{reinterpret_cast<char*>(dynamic)};
  const int rows = static_cast<int>(products.rows);
  PastShared<T, kHeadSize> shared(pieces, rows, static_cast<int>(products.in));
  const int head = blockIdx.x / kBlocks, rank = blockIdx.x % kBlocks;
  const int mine = threadIdx.y * 32 + threadIdx.x;
  cluster_arrive();
  let_next_begin();
  shared.products.fetch(products, head * kHeadSize + rank * Products::kPart);
  const int last = static_cast<int>(*call.position);
  Attend<kHeadWarps, kHeld, T> attend;
  attend.newest_key = shared.newest + kHeadSize;
  attend.newest_value = shared.newest + 2 * kHeadSize;
  attend.end = last + 1;
  attend.head_size = kHeadSize;
  if (rank < rows) attend.fetch(past_of<T>(call, rank, head));
  __syncthreads();
  wait_for_previous();
  shared.products.multiply(products);

  cluster_wait();  // all have begun
  for (int at = mine; at < rows * Products::kEach; at += kHeadThreads) {
    const int row = at / Products::kEach, each = at % Products::kEach;
    const int matrix = each / Products::kPart;
    const int d = rank * Products::kPart + each % Products::kPart;
    T* to = shared.newest + (row / kBlocks * 3 + matrix) * kHeadSize + d;
    *in_block(to, row % kBlocks) = shared.products.value(row, each);
  }
  cluster_sync();  // nobody writes into another block after this

  for (int row = rank; row < rows; row += kBlocks) {
    const T* q = shared.newest + row / kBlocks * 3 * kHeadSize;
    attend.newest_key = q + kHeadSize;
    attend.newest_value = q + 2 * kHeadSize;
    attend.put(attend.see(past_of<T>(call, row, head), q, /*is_held=*/row == rank),
               shared.warps.of(row / kBlocks));
    enter_newest(call, row, head, last, q + kHeadSize, q + 2 * kHeadSize);
  }
  __syncthreads();
  for (int row = rank; row < rows; row += kBlocks)
    for (int d = mine; d < kHeadSize; d += kHeadThreads) {
      const Joined joined = join_parts<kHeadWarps>(shared.warps.of(row / kBlocks), d, kHeadSize);
      static_cast<T*>(call.out)[(row * call.size.heads + head) * kHeadSize + d] =
          from_float<T>(joined.sum / joined.total);
    }
#endif
}

template <class T, int kHeadSize>
struct Kernel {
  using Shared = PastShared<T, kHeadSize>;
  static constexpr auto run = norm_attend_past_kernel<T, kHeadSize>;
};

}  // namespace

bool can_norm_attend_past(Number type, std::int64_t in, std::int64_t head_size) {
  return can_run_head_kernel<Kernel>(type, in, head_size);
}

void norm_attend_past(Number type, const NormProducts& products, const AttendPast& attend,
                      Stream stream) {
  run_head_kernel<Kernel>(type, products, attend, attend.size.heads, attend.size.head_size, stream);
  check_launch("norm_attend_past");
}

}  // namespace tutti::speech::cuda
