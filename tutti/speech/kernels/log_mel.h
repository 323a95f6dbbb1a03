// From samples to log-mel features in one kernel: frames, window, real FFT, power, mel filters, log.
// Conventions of kernels.h. Torch's operations write frames, spectrum and power to memory, 5 KB for a
// frame whose features are 320 bytes.
#pragma once

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

constexpr int kFftSize = 512;  // the one size this kernel knows

struct LogMelCall {
  std::int64_t batch = 0, frames = 0;
  std::int64_t samples = 0;     // of a row of speech
  std::int64_t speech_row = 0;  // elements from one row to the next
  const float* speech = nullptr;
  const std::int64_t* lengths = nullptr;  // (batch), in samples
  int hop = 160;
  int margin = 0;                 // samples that are mirrored at both ends of an utterance; 0: none
  const float* window = nullptr;  // (kFftSize)
  // cos and sin of -2 pi k / kFftSize, (kFftSize) pairs.
  const float* turns = nullptr;
  // Filter m adds up `count` bins from `first` on, with weights from `at` on.
  struct Filter {
    int first = 0, count = 0, at = 0;
  };
  const Filter* filters = nullptr;  // (mels)
  const float* weights = nullptr;   // (num_weights)
  int mels = 0, num_weights = 0;
  float floor = 1e-10F;  // of a sum, before its logarithm
};

// Whether filters and weights fit.
bool knows_mel_filters(int mels, int num_weights);
// out (batch, frames, mels); 0 in frames past an utterance's end.
void log_mel(const LogMelCall& call, float* out, Stream stream);

}  // namespace tutti::speech::cuda
