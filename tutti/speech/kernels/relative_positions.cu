// What goes into attention's products with relative positions, and comes back out of them.
#include "tutti/speech/kernels/norm_row.cuh"
#include "tutti/speech/kernels/relative_attention.cuh"

namespace tutti::speech::cuda {
namespace {

constexpr int kRowsAtOnce = 8;  // of a block that walks down columns

// AttentionSize in the numbers that a GPU divides by fast.
struct Blocked {
  explicit Blocked(const AttentionSize& size)
      : batch(static_cast<int>(size.batch)),
        heads(static_cast<int>(size.heads)),
        frames(static_cast<int>(size.frames)),
        head_size(static_cast<int>(size.head_size)),
        blocks(static_cast<int>(size.blocks)),
        columns(static_cast<int>(size.columns)) {}
  int batch, heads, frames, head_size, blocks, columns;

  // The row of the table that is the first one which a block of queries meets.
  __device__ int first_row(int block) const {
    return (blocks - 1 - block) * kTile - (blocks * kTile - frames);
  }
  __device__ std::int64_t query(int head, int utterance, int frame) const {
    return static_cast<std::int64_t>((head * blocks + frame / kTile) * batch + utterance) * kTile +
           frame % kTile;
  }
};

__global__ void spread_kernel(Blocked size, const Bf16* __restrict__ table, int rows,
                              Bf16* __restrict__ spread) {
  const std::int64_t to = first_of_pack();
  const int unit = static_cast<int>(to / size.head_size), d = static_cast<int>(to % size.head_size);
  const int column = unit % size.columns, block = unit / size.columns % size.blocks,
            head = unit / size.columns / size.blocks;
  if (head >= size.heads) return;
  const int row = size.first_row(block) + column;
  int4 pack = {};
  if (row >= 0 && row < rows)
    pack = *reinterpret_cast<const int4*>(
        table + (static_cast<std::int64_t>(row) * size.heads + head) * size.head_size + d);
  *reinterpret_cast<int4*>(spread + to) = pack;
}

__global__ void gather_kernel(Blocked size, const Bf16* __restrict__ grad_spread, int rows,
                              Bf16* __restrict__ grad_table) {
  const std::int64_t to = first_of_pack();
  const int unit = static_cast<int>(to / size.head_size), d = static_cast<int>(to % size.head_size);
  const int head = unit % size.heads, row = unit / size.heads;
  if (row >= rows) return;
  float sums[kPack] = {};
  for (int block = 0; block < size.blocks; ++block) {
    const int column = row - size.first_row(block);
    if (column < 0 || column >= size.columns) continue;
    const std::int64_t from =
        static_cast<std::int64_t>(head * size.blocks + block) * size.columns + column;
    float x[kPack];
    read_pack(grad_spread + from * size.head_size + d, x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sums[i] += x[i];
  }
  write_pack(grad_table + to, sums);
}

__global__ void split_kernel(Blocked size, const Bf16* __restrict__ q, std::int64_t q_row,
                             const float* __restrict__ u, const float* __restrict__ v,
                             Bf16* __restrict__ with_u, Bf16* __restrict__ with_v, float scale) {
  const int width = size.heads * size.head_size, padded = size.blocks * kTile;
  const std::int64_t at = first_of_pack();
  const int place = static_cast<int>(at / width), column = static_cast<int>(at % width);
  const int utterance = place / padded, frame = place % padded;
  if (utterance >= size.batch) return;
  float z[kPack] = {};
  if (frame < size.frames) {
    const std::int64_t row = static_cast<std::int64_t>(utterance) * size.frames + frame;
    float x[kPack], y[kPack];
    read_pack(q + row * q_row + column, x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      y[i] = x[i] + u[column + i];
      z[i] = (x[i] + v[column + i]) * scale;
    }
    write_pack(with_u + row * width + column, y);
  }
  write_pack(with_v + size.query(column / size.head_size, utterance, frame) * size.head_size +
                 column % size.head_size,
             z);
}

// Sums over rows go to partials (2, gridDim.y, width).
__global__ void split_back_kernel(Blocked size, const Bf16* __restrict__ grad_with_u,
                                  const Bf16* __restrict__ grad_with_v, Bf16* __restrict__ grad_q,
                                  std::int64_t grad_row, float* __restrict__ partials,
                                  float scale) {
  __shared__ float shared[kRowsAtOnce][32 * kPack];
  const int width = size.heads * size.head_size, rows = size.batch * size.frames;
  const int column = (blockIdx.x * 32 + threadIdx.x) * kPack;
  const int head = column / size.head_size, d = column % size.head_size;
  float sums[2][kPack] = {};
  if (column < width)
    for (int row = blockIdx.y * kRowsAtOnce + threadIdx.y; row < rows;
         row += gridDim.y * kRowsAtOnce) {
      const std::int64_t at = static_cast<std::int64_t>(row) * width + column;
      float x[kPack], y[kPack];
      read_pack(grad_with_u + at, x);
      read_pack(
          grad_with_v + size.query(head, row / size.frames, row % size.frames) * size.head_size + d,
          y);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        sums[0][i] += x[i];
        sums[1][i] += y[i] * scale;
        x[i] += y[i] * scale;
      }
      write_pack(grad_q + row * grad_row + column, x);
    }
  const int mine = threadIdx.y * 32 + threadIdx.x, to = blockIdx.x * 32 * kPack + mine;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) shared[threadIdx.y][threadIdx.x * kPack + i] = sums[s][i];
    __syncthreads();
    float sum = 0;
    for (int r = 0; r < kRowsAtOnce; ++r) sum += shared[r][mine];
    if (to < width)
      partials[(static_cast<std::int64_t>(s) * gridDim.y + blockIdx.y) * width + to] = sum;
    __syncthreads();
  }
}

float scale_of(const AttentionSize& size) {
  return 1.0F / std::sqrt(static_cast<float>(size.head_size));
}

}  // namespace

void spread_positions(const AttentionSize& size, const void* table, std::int64_t rows, void* spread,
                      Stream stream) {
  const std::int64_t count = size.heads * size.blocks * size.columns * size.head_size;
  spread_kernel<<<parts(count, 256 * kPack), 256, 0, stream>>>(
      Blocked(size), bf16(table), static_cast<int>(rows), bf16(spread));
  check_launch("spread_positions");
}

void gather_positions(const AttentionSize& size, const void* grad_spread, std::int64_t rows,
                      void* grad_table, Stream stream) {
  gather_kernel<<<parts(rows * size.heads * size.head_size, 256 * kPack), 256, 0, stream>>>(
      Blocked(size), bf16(grad_spread), static_cast<int>(rows), bf16(grad_table));
  check_launch("gather_positions");
}

void attention_queries(const AttentionSize& size, const void* q, std::int64_t q_row, const float* u,
                       const float* v, void* with_u, void* with_v, Stream stream) {
  const std::int64_t count = size.batch * size.blocks * kTile * size.heads * size.head_size;
  split_kernel<<<parts(count, 256 * kPack), 256, 0, stream>>>(
      Blocked(size), bf16(q), q_row, u, v, bf16(with_u), bf16(with_v), scale_of(size));
  check_launch("attention_queries");
}

void attention_queries_back(const AttentionSize& size, const void* grad_with_u,
                            const void* grad_with_v, void* grad_q, std::int64_t grad_row,
                            float* grad_uv, float* partials, Stream stream) {
  const std::int64_t width = size.heads * size.head_size;
  const dim3 grid(parts(width, 32 * kPack),
                  std::min<unsigned>(parts(size.batch * size.frames, kRowsAtOnce), kPartialBlocks));
  split_back_kernel<<<grid, dim3(32, kRowsAtOnce), 0, stream>>>(Blocked(size), bf16(grad_with_u),
                                                                bf16(grad_with_v), bf16(grad_q),
                                                                grad_row, partials, scale_of(size));
  launch_finish(partials, grad_uv, 2, static_cast<int>(grid.y), width, stream);
  check_launch("attention_queries_back");
}

}  // namespace tutti::speech::cuda
