// A decoder's step for few hypotheses. Its time is that of reading the weights, if nothing else takes
// any: so there are few kernels, each begins to read what it needs before the one before it has
// ended (on GPUs from compute capability 9 on), and what is added up stays in float.
//
// As kernels.h: plain pointers to device memory, contiguous; callers check shapes and types. `type`
// is half or bfloat16.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

constexpr std::int64_t kMostFewRows = 16;

// Whether layers of these sizes can be served: in and out of a norm and a product.
bool few_rows_known(std::int64_t in, bool with_norm);

// x[r] = embedding[tokens[r]] * scale + table[*position]; x (rows, size) is float.
struct EmbedRows {
  std::int64_t rows = 0, size = 0;
  const std::int64_t* tokens = nullptr;
  const std::int64_t* position = nullptr;
  const void *embedding = nullptr, *table = nullptr;
  float scale = 1;
  float* x = nullptr;
};
void embed_rows(Number type, const EmbedRows& call, Stream stream);

// Up to three products with the same x, each with a matrix (out, in) and a bias (out).
struct Outputs {
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
};

// y = act(norm(x) weight' + bias): x (rows, in) is float, y (rows, out) of `type` or float.
struct NormProducts {
  std::int64_t rows = 0, in = 0, out = 0;
  const float* x = nullptr;
  const void *norm_weight = nullptr, *norm_bias = nullptr;
  float eps = 0;
  int count = 1;
  Outputs outputs[3];
  bool relu = false;
  bool float_y = false;
};
void norm_products(Number type, const NormProducts& call, Stream stream);

// y += x weight' + bias: x (rows, in) is of `type`, y (rows, out) float.
struct AddProduct {
  std::int64_t rows = 0, in = 0, out = 0;
  const void* x = nullptr;
  Outputs output;
};
void add_product(Number type, const AddProduct& call, Stream stream);

// Whether heads of this size can be served by the two below.
bool few_queries_known(std::int64_t head_size);

// softmax(q k' / sqrt(head_size) + bias) v: `queries` rows for each utterance, q and out (utterances
// * queries, heads, head_size), keys and values (utterances, heads, frames, head_size), bias
// (utterances, frames) or null.
struct AttendMemory {
  std::int64_t utterances = 0, queries = 0, heads = 0, frames = 0, head_size = 0;
  const void *q = nullptr, *keys = nullptr, *values = nullptr, *bias = nullptr;
  void* out = nullptr;
};
void attend_memory(Number type, const AttendMemory& call, Stream stream);

// As attend_past (kernels.h), for few rows.
struct AttendPast {
  PastSize size;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *k_cache = nullptr, *v_cache = nullptr;
  std::int32_t* ancestors = nullptr;
  const std::int64_t* position = nullptr;
  void* out = nullptr;
};
void attend_past_few(Number type, const AttendPast& call, Stream stream);

// norm_products and the attention to what it gives in one kernel: the blocks of a head exchange q, k
// and v by their shared memory. No y of the products is written, no q, k and v are read.
// `products.out` is heads * head_size. REQUIRES: can_..(), at most kMostFewRows rows.
void norm_attend_past(Number type, const NormProducts& products, const AttendPast& attend,
                      Stream stream);
void norm_attend_memory(Number type, const NormProducts& products, const AttendMemory& attend,
                        Stream stream);
// Whether this GPU can, with these sizes: from compute capability 9 on, if they divide.
bool can_norm_attend_past(Number type, std::int64_t in, std::int64_t head_size);
bool can_norm_attend_memory(Number type, std::int64_t in, std::int64_t head_size);

// x (rows, columns) becomes its log-softmax, by several blocks for a row.
void log_softmax_rows(float* x, std::int64_t rows, std::int64_t columns, Stream stream);
// Whether this GPU can, with so many columns.
bool can_log_softmax_rows(std::int64_t columns);

}  // namespace tutti::speech::cuda
