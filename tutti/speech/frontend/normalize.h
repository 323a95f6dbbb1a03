// Mean and variance normalisation of features: by statistics of the corpus, or of the utterance.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/speech/frontend/log_mel.h"

namespace tutti::speech {

// mean = sum / count, std = sqrt(max(sum_square / count - mean^2, eps)), computed in double.
struct GlobalStatistics {
  torch::Tensor mean, std;  // (F) float32
};
GlobalStatistics read_global_statistics(const std::filesystem::path& npz, double eps);

// Buffers `mean` and `std`. Without a stats file they are 0 and 1 until a state dict is loaded.
class NormalizeImpl : public torch::nn::Module {
 public:
  NormalizeImpl(Build build, NormalizeSettings settings, std::int64_t feature_size);
  Features forward(const Features& features);

 private:
  NormalizeSettings settings_;
  torch::Tensor mean_, std_;
};
TORCH_MODULE(Normalize);

}  // namespace tutti::speech
