// Depthwise convolution for operations that make their own gradients. Internal to speech/.
#pragma once

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <torch/types.h>

#include <utility>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech {

// x and y (B, T, C), weight (C, 1, K) and bias (C, or undefined) float; all contiguous.
void depthwise_conv_into(torch::Tensor& y, const torch::Tensor& x, const torch::Tensor& weight_C1K,
                         const torch::Tensor& bias, cuda::ConvVariant variant);
// Of the weight (C, 1, K) and the bias (C).
std::pair<torch::Tensor, torch::Tensor> depthwise_conv_gradients(const torch::Tensor& x,
                                                                 const torch::Tensor& g,
                                                                 const torch::Tensor& weight_C1K);

}  // namespace tutti::speech
#endif
