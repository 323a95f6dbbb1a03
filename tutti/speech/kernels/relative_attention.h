// Self-attention with relative positions, and its gradients, without a matrix of scores by keys in
// memory (as flash attention does it). bf16, on compute capability 8.0 and later; conventions of
// kernels.h. Sums are made in a fixed order: results do not change from run to run.
//
// Query i and key j of an utterance of T frames score  q_i k_j / sqrt(d) + s(i, j),  where s is the
// score of the query, already scaled, against the position T-1-i+j of the table of relative positions
// (T-1, T-2, ..). These scores come as products of queries with the table, but not of all with all,
// as half of it is never looked at: queries are taken in blocks of 64, and a block meets only the rows
// of the table that one of its queries looks at. Within block n, s(i, j) lies in column 63 - i % 64 + j.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/fused.h"

namespace tutti::speech::cuda {

constexpr std::int64_t kQueryBlock = 64;

struct AttentionSize {
  AttentionSize(std::int64_t batch, std::int64_t heads, std::int64_t frames, std::int64_t head_size)
      : batch(batch),
        heads(heads),
        frames(frames),
        head_size(head_size),
        blocks((frames + kQueryBlock - 1) / kQueryBlock),
        columns((frames + kQueryBlock - 1 + 7) / 8 * 8) {}

  std::int64_t batch, heads, frames, head_size;
  std::int64_t blocks;   // of queries
  std::int64_t columns;  // rows of the table of positions that a block of queries meets, in eights
};

bool knows_head_size(std::int64_t head_size);

// The table (rows, heads, d) of positions T-1, T-2, .. to what each block of queries meets: (heads,
// blocks, columns, d); 0 for rows that the table does not have.
void spread_positions(const AttentionSize& size, const void* table, std::int64_t rows, void* spread,
                      Stream stream);
// The table's gradient.
void gather_positions(const AttentionSize& size, const void* grad_spread, std::int64_t rows,
                      void* grad_table, Stream stream);

// q (B, T, H, d; frames q_row elements apart) to what meets the keys, with_u = q + u, (B, T, H, d), and
// what meets the positions, with_v = (q + v) / sqrt(d), (H, blocks, B, 64, d) with zeros after the
// last frame. u and v are float (H, d).
void attention_queries(const AttentionSize& size, const void* q, std::int64_t q_row, const float* u,
                       const float* v, void* with_u, void* with_v, Stream stream);
// grad_q (B, T, H, d; frames grad_row elements apart), and grad_uv (float, (2, H, d)); partials is
// scratch for 2 sums of H * d.
void attention_queries_back(const AttentionSize& size, const void* grad_with_u,
                            const void* grad_with_v, void* grad_q, std::int64_t grad_row,
                            float* grad_uv, float* partials, Stream stream);

struct RelativeAttention {
  AttentionSize size;
  const void* q = nullptr;  // (B, T, H, d)
  const void* k = nullptr;  // (B, T, H, d), frames k_row elements apart
  const void* v = nullptr;
  std::int64_t k_row = 0, v_row = 0;
  const std::uint8_t* valid = nullptr;  // (B, T): keys that exist, the first ones; null: all
  const void* scores = nullptr;         // (H, blocks, B, 64, columns)
  Dropout dropout;                      // of attention weights
  void* out = nullptr;                  // (B, T, H, d)
  float* sums = nullptr;  // (B, H, blocks * 64): log2 of the sum of exponentials of a query
};
void relative_attention(const RelativeAttention& call, Stream stream);

// Reads all of `call`.
struct RelativeAttentionBack {
  const void* grad_out = nullptr;
  float* products = nullptr;  // scratch like `sums`: of out with its gradient
  void* grad_q = nullptr;     // (B, T, H, d)
  void* grad_k = nullptr;     // (B, T, H, d), frames grad_row elements apart
  void* grad_v = nullptr;
  std::int64_t grad_row = 0;
  void* grad_scores = nullptr;  // like scores, all of it
};
void relative_attention_back(const RelativeAttention& call, const RelativeAttentionBack& back,
                             Stream stream);

}  // namespace tutti::speech::cuda
