// From samples to log-mel features: ESPnet's `default` frontend, batched, on the CPU or a GPU.
//
//   LogMel frontend(Build{}, {.win_length = 400, .hop_length = 160});
//   auto [features_BTF, frames] = frontend->forward(speech_BN, num_samples);
//
// STFT (Hann, centred), power, Slaney mel filters, log. The signal is mirrored at the end of each
// utterance, not at the end of the padded batch (as torch.stft alone would), so an utterance has
// the same features in every batch. Always float32, also under autocast. Frames past the end are 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/modules.h"
#include "tutti/speech/ops/gpu/log_mel.h"

namespace tutti::speech {

struct Features {
  torch::Tensor values;  // (B, T, F) float32, 0 past the end
  Lengths lengths;
};

// Triangular filters, (n_fft / 2 + 1, n_mels) float32, with Slaney's area normalisation.
torch::Tensor mel_filters(const LogMelSettings& settings);

class LogMelImpl : public torch::nn::Module {
 public:
  LogMelImpl(Build build, LogMelSettings settings);
  // speech (B, N) in [-1, 1], or (B, N, C): a random channel in training, else the first.
  // Throws DataError for an utterance too short to be mirrored (n_fft / 2 samples).
  Features forward(const torch::Tensor& speech, const Lengths& num_samples);
  std::int64_t num_frames(std::int64_t num_samples) const;
  std::int64_t size() const { return settings_.n_mels; }

 private:
  LogMelSettings settings_;
  torch::Tensor melmat_;
  torch::Tensor window_;  // not in the state dict; made anew, follows the device
  gpu::FusedLogMel fused_;
};
TORCH_MODULE(LogMel);

}  // namespace tutti::speech
