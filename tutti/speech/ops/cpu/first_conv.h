// The first convolution of the subsampling and its ReLU on a CPU: 3 x 3 taps of one input channel.
// Its output is the largest tensor of a small model, so what it costs is how often that is read and
// written: once forward and once backward, against eleven times by torch's operations.
#pragma once

#include <torch/types.h>

namespace tutti::speech {

// float32 features on a CPU that want no gradient themselves, and 3 x 3 taps.
bool has_first_conv(const torch::Tensor& features_BTF, const torch::Tensor& weight_C133);

// relu(conv2d(features)), (B, C, T', F') with channels innermost in memory.
torch::Tensor first_conv_relu(const torch::Tensor& features_BTF, const torch::Tensor& weight_C133,
                              const torch::Tensor& bias_C, std::int64_t stride);

}  // namespace tutti::speech
