// Attention of few queries: a block for each query and head.
#include "tutti/speech/kernels/few_queries.cuh"

#include "tutti/speech/kernels/few_rows.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kHeld = 6;  // places that a lane has at once
constexpr int kMemoryWarps = 16, kPastWarps = 4;

// What is there already is on its way before the kernel before this one has ended.
template <int kWarps, class T, class Where>
__device__ void attend_to(Attend<kWarps, kHeld, T>& attend, const Where& where, const T* q,
                          T* out) {
  __shared__ float sums[kWarps * kMaxHeadSize], tops[kWarps], totals[kWarps];
  const Parts parts{tops, totals, sums};
  let_next_begin();
  attend.fetch(where);
  wait_for_previous();
  attend.put(attend.see(where, q, /*is_held=*/true), parts);
  __syncthreads();
  for (int d = threadIdx.y * 32 + threadIdx.x; d < attend.head_size; d += kWarps * 32) {
    const Joined joined = join_parts<kWarps>(parts, d, attend.head_size);
    out[d] = from_float<T>(joined.sum / joined.total);
  }
}

template <class T>
__global__ void __launch_bounds__(32 * kMemoryWarps) attend_memory_kernel(const AttendMemory call) {
  const int head = blockIdx.x, row = blockIdx.y;
  const std::int64_t utterance = row / call.queries;
  const std::int64_t mine = (row * call.heads + head) * call.head_size;
  Attend<kMemoryWarps, kHeld, T> attend;
  if (call.bias != nullptr)
    attend.bias = static_cast<const T*>(call.bias) + utterance * call.frames;
  attend.end = static_cast<int>(call.frames);
  attend.head_size = static_cast<int>(call.head_size);
  attend_to(attend, memory_of<T>(call, utterance, head), static_cast<const T*>(call.q) + mine,
            static_cast<T*>(call.out) + mine);
}

// `position`, the caches before it and the ancestors before it are of steps that are over.
template <class T>
__global__ void attend_past_few_kernel(const AttendPast call) {
  const int head = blockIdx.x, row = blockIdx.y;
  const int last = static_cast<int>(*call.position);
  const std::int64_t mine = (row * call.size.heads + head) * call.size.head_size;
  const T *k = static_cast<const T*>(call.k) + mine, *v = static_cast<const T*>(call.v) + mine;
  Attend<kPastWarps, kHeld, T> attend;
  attend.newest_key = k;
  attend.newest_value = v;
  attend.end = last + 1;
  attend.head_size = static_cast<int>(call.size.head_size);
  attend_to(attend, past_of<T>(call, row, head), static_cast<const T*>(call.q) + mine,
            static_cast<T*>(call.out) + mine);
  enter_newest(call, row, head, last, k, v);
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
    launch_early(attend_memory_kernel<T>, grid, dim3(32, kMemoryWarps), 0, stream, call);
  });
  check_launch("attend_memory");
}

void attend_past_few(Number type, const AttendPast& call, Stream stream) {
  with_half_type(type, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    const dim3 grid(static_cast<unsigned>(call.size.heads), static_cast<unsigned>(call.size.rows));
    launch_early(attend_past_few_kernel<T>, grid, dim3(32, kPastWarps), 0, stream, call);
  });
  check_launch("attend_past_few");
}

}  // namespace tutti::speech::cuda
