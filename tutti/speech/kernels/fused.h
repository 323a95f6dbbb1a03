// GPU kernels that do in one pass over memory what a layer does between two matrix products. As
// kernels.h: plain pointers to contiguous device memory, queued on `stream`, callers check shapes
// and types. Matrices are (rows, columns). Sums over rows are made of partial sums in a fixed
// order, so results do not change from run to run; `partials` is scratch of partial_floats()
// floats.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

// Which elements stay: those whose hash of (key, index) reaches `threshold` of 2^31, as on the CPU
// (dropout_hash.h). A threshold of 0 keeps all.
struct Dropout {
  std::uint64_t key = 0;
  std::int32_t threshold = 0;
  float scale = 1;  // of what stays
  // In device memory: where the key is when the kernel runs, if it is not known at its launch (a
  // recording that is launched again and again).
  const std::uint64_t* key_at = nullptr;
};

struct Matrix {
  std::int64_t rows = 0, columns = 0;
};

// Where sums over rows go.
struct Sums {
  float* totals = nullptr;       // (sums, columns)
  float* partials = nullptr;     // scratch
  unsigned* counters = nullptr;  // kCounters zeros; zeros again when the kernel is done
};
constexpr int kCounters = 1024;  // matrices have at most 256 times as many columns

// For `sums` sums over the rows of a matrix.
std::int64_t partial_floats(int sums, std::int64_t columns);

// Columns that the normalising kernels know.
bool knows_norm_width(std::int64_t columns);

struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
  void* y = nullptr;        // forward: the result
  const void* g = nullptr;  // backward: its gradient, or null
};

// sum = x + factor * dropout(branch), y = norm(sum) for one or two norms (the second's weight may
// be null). branch is of type `type` or null (then `sum` is not written), x and sum are float or of
// that type, and so is y.
struct AddNorm {
  Matrix size;
  Number x_type = Number::kFloat;
  const void* x = nullptr;
  Number type = Number::kFloat;
  const void* branch = nullptr;
  float factor = 1;
  Dropout dropout;
  void* sum = nullptr;
  Number y_type = Number::kFloat;
  Norm norms[2];
  float eps = 1e-12F;
  float* mean = nullptr;  // (rows)
  float* rstd = nullptr;  // (rows)
};
void add_norm(const AddNorm& call, Stream stream);

// grad_x = grad_sum (may be null) + through the norms, of x's type; grad_branch (or null) of type
// `type`.
// grad_parameters (float, (2 * norms + 1, columns)): weight and bias of the first norm, then of the
// second, then the sum over rows of grad_branch (if there is one).
// Reads sum, mean, rstd, norms[].weight and norms[].g.
struct AddNormBack {
  const void* grad_sum = nullptr;
  void* grad_x = nullptr;
  void* grad_branch = nullptr;
  float* grad_parameters = nullptr;
  float* partials = nullptr;  // for 5 sums
};
void add_norm_back(const AddNorm& call, const AddNormBack& back, Stream stream);

enum class Curve { kIdentity, kRelu, kSwish, kGelu };

// y = dropout(curve(h)); columns a multiple of 8.
void activate(Number type, const void* h, Curve curve, const Dropout& dropout, void* y,
              const Matrix& size, Stream stream);
// grad_h, and its sum over rows.
void activate_back(Number type, const void* g, const void* h, Curve curve, const Dropout& dropout,
                   void* grad_h, const Sums& to, const Matrix& size, Stream stream);

// Sums over rows of g; columns a multiple of 8.
void column_sums(Number type, const void* g, const Sums& to, const Matrix& size, Stream stream);

// q (rows, heads * d; rows q_row elements apart) to with_u = q + u of the same shape and with_v =
// (q + v) * scale, (heads, rows, d). u and v are float (heads * d); d a multiple of 8.
struct Queries {
  Matrix size;
  std::int64_t head_size = 0;
  std::int64_t q_row = 0;
  Number type = Number::kFloat;
  float scale = 1;
};
void position_queries(const Queries& call, const void* q, const float* u, const float* v,
                      void* with_u, void* with_v, Stream stream);
// grad_q (rows, heads * d), and the gradients of u and v.
void position_queries_back(const Queries& call, const void* grad_with_u, const void* grad_with_v,
                           void* grad_q, const Sums& grad_uv, Stream stream);

// The convolutional gating unit of a cgMLP without its convolution. h is (rows, 2 * columns): its
// first half passes, its second half gates. `valid` (rows bytes; null: all) says which rows exist.
struct Gate {
  Matrix size;  // of one half
  Number type = Number::kFloat;
  const void* h = nullptr;
  const std::uint8_t* valid = nullptr;
  const float* weight = nullptr;  // of the norm
  const float* bias = nullptr;
  float eps = 1e-12F;
  float* mean = nullptr;
  float* rstd = nullptr;
  Dropout dropout;
};
// normed = norm(gelu(second half)), 0 in rows that do not exist.
void gate_norm(const Gate& call, void* normed, Stream stream);
// Fills the second half of grad_h; grad_parameters (float, (2, columns)) of the norm.
void gate_norm_back(const Gate& call, const void* g, void* grad_h, float* grad_parameters,
                    float* partials, Stream stream);
// y = dropout(gelu(first half) * gate).
void gate_multiply(const Gate& call, const void* gate, void* y, Stream stream);
// Fills grad_gate and the first half of grad_h.
void gate_multiply_back(const Gate& call, const void* gate, const void* g, void* grad_gate,
                        void* grad_h, Stream stream);

// joined (rows, 2 * columns) = dropout(a), dropout(b) side by side, 0 in rows that do not exist.
struct Join {
  Matrix size;  // of a and of b
  Number type = Number::kFloat;
  const std::uint8_t* valid = nullptr;
  Dropout dropout_a, dropout_b;
};
void join(const Join& call, const void* a, const void* b, void* joined, Stream stream);
// Also the sums over rows of grad_a and of grad_b.
void join_back(const Join& call, const void* g, void* grad_a, void* grad_b, const Sums& to,
               Stream stream);

}  // namespace tutti::speech::cuda
