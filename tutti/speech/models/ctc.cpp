#include "tutti/speech/models/ctc.h"

#include <torch/torch.h>

#include "tutti/speech/ops/gpu/ctc.h"

namespace tutti::speech {

CtcImpl::CtcImpl(Build build, std::int64_t vocab_size, std::int64_t encoder_size,
                 CtcSettings settings)
    : settings_(settings) {
  ctc_lo_ = register_module("ctc_lo", Linear(build, encoder_size, vocab_size));
}

torch::Tensor CtcImpl::logits(const torch::Tensor& encoded_BTD) { return ctc_lo_(encoded_BTD); }

torch::Tensor CtcImpl::log_probs(const torch::Tensor& encoded_BTD) {
  return torch::log_softmax(logits(encoded_BTD), -1, torch::kFloat32);
}

torch::Tensor CtcImpl::losses(const torch::Tensor& encoded_BTD, const torch::Tensor& lengths_2B,
                              const torch::Tensor& text_BL) {
  return cuda_ctc_loss(logits(apply_dropout(encoded_BTD, settings_.dropout_rate, is_training())),
                       lengths_2B, text_BL, settings_.zero_infinity, /*logits_are_ours=*/true);
}

torch::Tensor CtcImpl::loss(const torch::Tensor& encoded_BTD, const Lengths& encoded_lengths,
                            const torch::Tensor& text_BL, const Lengths& text_lengths) {
  const torch::Tensor logits_BTV =
      logits(apply_dropout(encoded_BTD, settings_.dropout_rate, is_training()));
  if (has_cuda_ctc(logits_BTV, text_lengths))
    return cuda_ctc_loss(logits_BTV, encoded_lengths, text_BL, text_lengths,
                         settings_.zero_infinity, /*logits_are_ours=*/true)
               .sum() /
           encoded_BTD.size(0);
  const torch::Tensor log_probs_TBV =
      torch::log_softmax(logits_BTV, -1, torch::kFloat32).transpose(0, 1);
  const torch::Tensor targets = text_BL.to(torch::kInt64).clamp_min(0);
  const torch::Tensor losses =
      torch::ctc_loss(log_probs_TBV, targets, encoded_lengths, text_lengths,
                      /*blank=*/0, at::Reduction::None, settings_.zero_infinity);
  return losses.sum() / encoded_BTD.size(0);
}

}  // namespace tutti::speech
