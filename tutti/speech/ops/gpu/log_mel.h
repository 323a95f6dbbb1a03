// Log-mel features by a kernel of ours (kernels/log_mel.h). Internal to speech/.
#pragma once

#include <torch/types.h>

#include "tutti/speech/models/lengths.h"

namespace tutti::speech::gpu {

class FusedLogMel {
 public:
  struct Call {
    torch::Tensor speech_BN;
    const Lengths& num_samples;
    std::int64_t frames = 0;
    std::int64_t fft_size = 0, hop = 0, margin = 0;  // margin: 0 without centring
    torch::Tensor window;                            // at most fft_size, in the middle of a frame
    torch::Tensor filters_FM;                        // (fft_size / 2 + 1, mels)
    bool normalized = false;
  };
  // (B, frames, mels), 0 past an utterance's end; undefined where the kernel does not fit.
  torch::Tensor run(const Call& call);

 private:
  // Made anew when the filters are others.
  torch::Tensor window_, turns_, places_, weights_;
  const void* made_of_ = nullptr;
  std::uint32_t version_ = 0;
};

}  // namespace tutti::speech::gpu
