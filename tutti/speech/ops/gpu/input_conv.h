// The convolutions of an input layer on a GPU, with bias and ReLU in the same pass.
//
// Activations are (B, C, T, F) to torch, with channels innermost in memory: so cuDNN's fastest
// kernels take them as they are, and nothing of the half gigabyte that the first convolution gives
// is ever transposed. Under autocast results are of autocast's type.
//
//   torch::Tensor x = cuda_first_conv_relu(features_BTF, conv0->weight, conv0->bias, 2);
//   x = cuda_conv_relu(x, conv1->weight, conv1->bias, 2);
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace tutti::speech {

// Whether cuda_first_conv_relu takes this: it lies on a GPU, is of a known type and size, and
// nobody asked for torch's deterministic algorithms.
bool has_cuda_input(const torch::Tensor& features_BTF, const torch::Tensor& weight_C1KK,
                    std::int64_t stride);

// relu(conv2d(features, weight, bias)) with features as the only channel.
torch::Tensor cuda_first_conv_relu(const torch::Tensor& features_BTF,
                                   const torch::Tensor& weight_C133, const torch::Tensor& bias_C,
                                   std::int64_t stride);

// relu(conv2d(x, weight, bias)), the convolution by torch.
torch::Tensor cuda_conv_relu(const torch::Tensor& x_BCTF, const torch::Tensor& weight_DCKK,
                             const torch::Tensor& bias_D, std::int64_t stride);

}  // namespace tutti::speech
