// Lengths of the utterances of a padded batch, and the masks made from them.
//
// Lengths stay on the host: they come from the loader, they decide shapes, and asking a GPU for
// them would make it wait. Only masks and indices made from them travel to the device.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tutti::speech {

using Lengths = std::vector<std::int64_t>;

std::int64_t max_length(const Lengths& lengths);
// Up to a multiple of a step that grows with the size: sizes are few, and padding is a `parts`-th
// of them or less, a quarter of that in the mean.
std::int64_t rounded_up(std::int64_t size, std::int64_t step, std::int64_t parts);
bool all_equal(const Lengths& lengths, std::int64_t value);

// (B, max_len), true at frames that exist. Undefined when all do: then nothing has to be masked.
torch::Tensor valid_mask(const Lengths& lengths, std::int64_t max_len, torch::Device device);
// Of lengths in device memory; always defined.
torch::Tensor valid_mask(const torch::Tensor& lengths_B, std::int64_t max_len);
// Positions of the frames that exist in a flattened (B * max_len) batch, int64; from begins[b] on
// where `begins` is given.
torch::Tensor valid_positions(const Lengths& lengths, std::int64_t max_len, torch::Device device,
                              const Lengths& begins = {});
// Host numbers to a device without waiting for it.
torch::Tensor to_device(const std::vector<std::int64_t>& values, torch::Device device);

// Sets frames past the end of each utterance to zero; x is (B, T, ...). No-op without a mask.
torch::Tensor zero_padding(const torch::Tensor& x_BTx, const torch::Tensor& valid_BT);

// Frames left by an unpadded convolution: floor((length - kernel) / stride) + 1, at least 0.
std::int64_t conv_length(std::int64_t length, int kernel, int stride);

}  // namespace tutti::speech
