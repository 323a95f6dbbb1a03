// Products of small bf16 matrices by a warp, and copies that feed them (compute capability 8.0 on).
//
// A warp multiplies 16 x 16 by 16 x 8. Lane l holds of the result rows l / 4 and l / 4 + 8, columns
// 2 (l % 4) and the next; of the left matrix the same rows and columns, and those 8 further; of the
// right one the columns and rows so. A result therefore is a left matrix as it is (left_of).
#pragma once

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {

using Half2 = std::uint32_t;  // two bf16 neighbours; the first one in the low bits

__device__ inline Half2 pack_halves(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const Half2*>(&pair);
}

__device__ inline void multiply_add(float (&to)[4], const Half2 (&left)[4], Half2 right_0,
                                    Half2 right_1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
}

// Two results side by side, 16 x 16, as a left matrix.
__device__ inline void left_of(const float (&first)[4], const float (&second)[4],
                               Half2 (&left)[4]) {
  left[0] = pack_halves(first[0], first[1]);
  left[1] = pack_halves(first[2], first[3]);
  left[2] = pack_halves(second[0], second[1]);
  left[3] = pack_halves(second[2], second[3]);
}

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Right matrices from a tile in shared memory whose rows are kRow elements apart: 16 of its rows by
// 16 of its columns, for two products. In the first the tile's rows are the columns of the result
// (a b'), in the second the tile is the right matrix itself (a b).
template <int kRow>
__device__ inline void read_transposed(const __nv_bfloat16* tile, int row, int column,
                                       Half2 (&right)[4]) {
  const int lane = threadIdx.x % 32;
  const auto* at = tile + (row + lane / 16 * 8 + lane % 8) * kRow + column + lane / 8 % 2 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3])
               : "r"(shared_address(at)));
}
template <int kRow>
__device__ inline void read_plain(const __nv_bfloat16* tile, int row, int column,
                                  Half2 (&right)[4]) {
  const int lane = threadIdx.x % 32;
  const auto* at = tile + (row + lane / 8 % 2 * 8 + lane % 8) * kRow + column + lane / 16 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3])
               : "r"(shared_address(at)));
}

// Sixteen bytes to shared memory, which arrive later; zeros if there are none.
__device__ inline void copy_later(void* to, const void* from, bool exists) {
  const int bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes));
}
// What this thread copies has arrived.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tutti::speech::cuda
