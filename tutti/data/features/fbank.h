// Log-mel filter banks on the CPU, as ESPnet's `default` frontend: centred frames with reflected
// edges, periodic Hann window, power spectrum, Slaney mel scale with area norm, natural log of at
// least 1e-10. For collect_stats and tools; training computes the same on the GPU (speech room).
//
//   Fbank fbank({.n_mels = 80});
//   Array feats = fbank.compute(sample.speech);      // float32 [T, 80]
//
// Immutable, thread-safe. The same bits on every processor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/config/schema.h"
#include "tutti/data/array.h"
#include "tutti/data/features/fft.h"

namespace tutti::data {

struct FbankSettings {
  int fs = 16000;                 // Hz
  int n_fft = 512;                // a power of two
  std::optional<int> win_length;  // samples; null: n_fft
  int hop_length = 128;           // samples
  int n_mels = 80;
  double fmin = 0;             // Hz
  std::optional<double> fmax;  // Hz; null: fs / 2

  std::uint64_t hash() const;  // for the fingerprint of statistics
};
config::Schema<FbankSettings> fbank_schema();

class Fbank {
 public:
  // Throws ConfigError.
  explicit Fbank(const FbankSettings& settings);
  // Frames for that many samples: 1 + N / hop (n_fft even, centred).
  std::int64_t num_frames(std::size_t num_samples) const noexcept;
  int num_mels() const noexcept { return settings_.n_mels; }
  // Throws DataError when there are fewer samples than the reflection needs (n_fft / 2 + 1).
  Array compute(std::span<const float> speech) const;

 private:
  struct Filter {
    std::size_t first = 0;  // bin
    std::vector<float> weights;
  };
  const FbankSettings settings_;
  const Fft<float> fft_;
  std::vector<float> window_;  // [n_fft], zero outside win_length
  std::vector<Filter> filters_;
};

}  // namespace tutti::data
