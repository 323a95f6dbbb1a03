// SpecAugment: time warping, frequency masks, time masks; training only, before normalisation.
//
// All draws are made on the features' device with torch's generator there, and nothing is read
// back, so a GPU never waits. Each utterance is warped on its own, also in batches of equal lengths
// (ESPnet gives those one common warp); mask widths and positions follow ESPnet, time masks by the
// padded length.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/speech/frontend/log_mel.h"

namespace tutti::speech {

Features spec_augment(const Features& features, const SpecAugmentSettings& settings);

// The warp alone: frames [0, center) become [0, warped), the rest the rest; bicubic. center and
// warped are (B) int64 on the device; utterances where center is 0 stay as they are.
torch::Tensor time_warp(const torch::Tensor& x_BTF, const torch::Tensor& lengths_B,
                        const torch::Tensor& center_B, const torch::Tensor& warped_B);

}  // namespace tutti::speech
