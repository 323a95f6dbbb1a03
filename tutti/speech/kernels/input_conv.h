// Kernels for convolutional input layers, channels innermost. Same rules as in kernels.h; sums over
// a batch are made in a fixed order, so that results repeat to the last bit.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

// A 3x3 convolution of one input channel, without padding: (B, T, F) to (B, T', F', C).
struct InputConvSize {
  std::int64_t batch = 0, frames = 0, bins = 0, channels = 0;
  int stride = 1;  // of both dimensions
  std::int64_t out_frames() const { return (frames - 3) / stride + 1; }
  std::int64_t out_bins() const { return (bins - 3) / stride + 1; }
};
inline constexpr std::int64_t kMaxInputBins = 512;  // a tile of frames lies in shared memory
inline constexpr int kMaxInputStride = 2;

// y[b,t,f,c] = max(0, bias[c] + sum_{i,j} w[c,i,j] * x[b, t*stride+i, f*stride+j])
void input_conv_relu(const float* x, const float* w, const float* bias, Number y_type, void* y,
                     const InputConvSize& size, Stream stream);

// Floats of the buffer that the backward pass needs for its partial sums.
std::int64_t input_conv_workspace(const InputConvSize& size);
// grads (10 * C): those of w (C, 3, 3), then those of bias (C), from the gradient g of y and y
// itself, which tells where max(0, .) let something through.
void input_conv_relu_back(const float* x, Number y_type, const void* g, const void* y,
                          float* workspace, float* grads, const InputConvSize& size, Stream stream);

struct RowsSize {
  std::int64_t rows = 0, channels = 0;
};

// x[r,c] = max(0, x[r,c] + bias[c])
void bias_relu(Number type, void* x, const float* bias, const RowsSize& size, Stream stream);

std::int64_t bias_relu_workspace(const RowsSize& size);  // in floats, for bias_relu_back
// grad_x = g where y > 0, else 0; grad_bias[c] = sum_r grad_x[r,c]
void bias_relu_back(Number type, const void* g, const void* y, void* grad_x, float* workspace,
                    float* grad_bias, const RowsSize& size, Stream stream);

}  // namespace tutti::speech::cuda
