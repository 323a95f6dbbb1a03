// The convolutions of an input layer on a GPU, with bias and ReLU in the same pass.
//
// Activations are (B, C, T, F) to torch, with channels innermost in memory: so cuDNN's fastest
// kernels take them as they are, and nothing of the half gigabyte that the first convolution gives
// is ever transposed. Under autocast results are of autocast's type.
//
//   torch::Tensor x = cuda_first_convs_relu(features_BTF, {w0, b0, 2}, {w1, b1, 2});
//   x = cuda_conv_relu(x, {w2, b2, 2});
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace tutti::speech {

struct InputConv {
  torch::Tensor weight, bias;
  std::int64_t stride = 1;  // of both dimensions
};

// Whether cuda_first_convs_relu takes this: it lies on a GPU, is of a known type and size, and
// nobody asked for torch's deterministic algorithms.
bool has_cuda_input(const torch::Tensor& features_BTF, const torch::Tensor& weight_C1KK,
                    std::int64_t stride);

// relu(conv2d(relu(conv2d(features)))), with features as the only channel; the second by torch. What
// lies between the two is the largest activation of a model: it is not kept for the backward pass but
// made again there, in a hundredth of a step.
torch::Tensor cuda_first_convs_relu(const torch::Tensor& features_BTF, const InputConv& first,
                                    const InputConv& second);

// relu(conv2d(x, weight, bias)), the convolution by torch.
torch::Tensor cuda_conv_relu(const torch::Tensor& x_BCTF, const InputConv& conv);

}  // namespace tutti::speech
