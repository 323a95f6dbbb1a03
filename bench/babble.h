// Made-up voices for benchmarks that read audio files.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tutti/core/random.h"

namespace tutti::bench {

inline constexpr int kBabbleRate = 16000;  // Hz

// Something between speech and noise: syllables of a buzzing voice, with breath between them. FLAC makes of it about
// what it makes of speech, and reading it costs the same.
inline std::vector<float> babble(Random& rng, double seconds) {
  std::vector<float> out(static_cast<std::size_t>(seconds * kBabbleRate));
  double phase = 0, pitch = 120, loudness = 0;
  std::size_t syllable_end = 0;
  for (std::size_t n = 0; n < out.size(); ++n) {
    if (n >= syllable_end) {
      syllable_end = n + static_cast<std::size_t>(rng.uniform(0.08, 0.3) * kBabbleRate);
      pitch = rng.uniform(90, 220);
      loudness = rng.uniform() < 0.2 ? 0.0 : rng.uniform(0.05, 0.3);
    }
    phase += pitch / kBabbleRate;
    phase -= std::floor(phase);
    const double left = static_cast<double>(syllable_end - n) / kBabbleRate;
    out[n] =
        static_cast<float>(loudness * std::min(1.0, 20 * left) * (2 * phase - 1) * (1 - phase) +
                           0.003 * (rng.uniform() - 0.5));
  }
  return out;
}

}  // namespace tutti::bench
