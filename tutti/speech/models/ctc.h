// The CTC head: one linear layer over encoder frames, and its loss. Blank is token 0.
#pragma once

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/modules.h"

namespace tutti::speech {

class CtcImpl : public torch::nn::Module {
 public:
  CtcImpl(Build build, std::int64_t vocab_size, std::int64_t encoder_size,
          CtcSettings settings = {});

  torch::Tensor logits(const torch::Tensor& encoded_BTD);     // (B, T, V), as the encoder's dtype
  torch::Tensor log_probs(const torch::Tensor& encoded_BTD);  // (B, T, V), float32
  // Sum over utterances divided by B. text is (B, L) int64, padded with anything.
  torch::Tensor loss(const torch::Tensor& encoded_BTD, const Lengths& encoded_lengths,
                     const torch::Tensor& text_BL, const Lengths& text_lengths);
  // Of each utterance, with lengths in device memory (cuda_ctc_loss). REQUIRES: has_cuda_ctc().
  torch::Tensor losses(const torch::Tensor& encoded_BTD, const torch::Tensor& lengths_2B,
                       const torch::Tensor& text_BL);

 private:
  Linear ctc_lo_{nullptr};
  CtcSettings settings_;
};
TORCH_MODULE(Ctc);

}  // namespace tutti::speech
