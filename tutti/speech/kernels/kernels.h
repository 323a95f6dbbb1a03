// GPU kernels of our own, where torch's are slow or come in many pieces. Plain pointers, no torch:
// the device compiler need not read its headers. Everything is queued on `stream`; pointers are to
// device memory; tensors are contiguous. Callers check shapes and types.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tutti::speech::cuda {

using Stream = CUstream_st*;
enum class Number { kFloat, kHalf, kBFloat16 };

struct ConvSize {
  std::int64_t batch = 0, frames = 0, channels = 0;
  int kernel = 1;  // odd; padding is (kernel - 1) / 2
};

struct ConvVariant {
  bool flip = false;      // take w[c, kernel-1-k]: the gradient of the input
  bool residual = false;  // add x
};

// y[b,t,c] = bias[c] + sum_k w[c,k] * x[b, t+k-pad, c]. w (C, K) and bias (C, or null) are float;
// sums are in float. x and y may be of different types.
void depthwise_conv(Number x_type, const void* x, const float* w, const float* bias,
                    ConvVariant variant, Number y_type, void* y, const ConvSize& size,
                    Stream stream);

// grad_w[c,k] = sum_{b,t} g[b,t,c] * x[b, t+k-pad, c] and grad_bias[c] = sum_{b,t} g[b,t,c]
// (float), added up in a fixed order. `partials` is scratch of depthwise_conv_partials() floats.
std::int64_t depthwise_conv_partials(const ConvSize& size);
void depthwise_conv_weights(Number x_type, const void* x, Number g_type, const void* g,
                            float* grad_w, float* grad_bias, float* partials, const ConvSize& size,
                            Stream stream);

struct ShiftSize {
  std::int64_t batch = 0, heads = 0, frames = 0;
  std::int64_t columns = 0;  // of scores, at least 2 * frames - 1
  std::int64_t out_row = 0;  // elements from one row of `out` to the next, at least `frames`
};

// From scores of queries against relative positions (H, B, T, columns) to scores against keys
// (B, H, T, out_row): out[b,h,i,j] = scores[h,b,i, T-1-i+j] + key_bias[b,j]; key_bias (B, T) of the
// same type, or null.
void relative_shift(Number type, const void* scores, const void* key_bias, void* out,
                    const ShiftSize& size, Stream stream);

// Back again: scores get grad_out[b,h,i,j] at their places and 0 elsewhere. Rows of grad_out, (B,
// H, T), are `strides` elements apart.
void relative_shift_back(Number type, const void* grad_out, const std::int64_t (&strides)[3],
                         void* grad_scores, const ShiftSize& size, Stream stream);

// Where a search keeps what its hypotheses said so far: row n's token at place p lies in row
// ancestors[n, p], so that a hypothesis which continues another one copies nothing.
struct PastSize {
  std::int64_t rows = 0, heads = 0, capacity = 0;
  std::int64_t head_size = 0;  // a multiple of 8, at most 256
};

// One new token per row: puts k and v (rows, heads, head_size) at place *position of the row's own
// cache (rows, heads, capacity, head_size), enters the row there as its own ancestor, and gives
// softmax(q k' / sqrt(head_size)) v over places 0 .. *position.
void attend_past(Number type, const void* q, const void* k, const void* v, void* k_cache,
                 void* v_cache, std::int32_t* ancestors, const std::int64_t* position, void* out,
                 const PastSize& size, Stream stream);

}  // namespace tutti::speech::cuda
