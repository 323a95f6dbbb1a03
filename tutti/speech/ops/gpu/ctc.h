// CTC loss from logits on a GPU: log-softmax, loss and gradient without a tensor of probabilities.
//
//   if (has_cuda_ctc(logits, text_lengths))
//     losses_B = cuda_ctc_loss(logits, frame_lengths, text, text_lengths, /*zero_infinity=*/true);
//
// Why not torch's: that wants log-probabilities of all frames and tokens as floats, time first, and
// gives their gradient in the same size; with a vocabulary of thousands most of its time is spent
// moving numbers nobody asked for. Results repeat to the last bit.
#pragma once

#include <torch/types.h>

#include "tutti/speech/models/lengths.h"

namespace tutti::speech {

// Whether the logits lie on a GPU, are of a known type, and no text is longer than some thousand
// tokens; false when deterministic algorithms, which means torch's, are asked for.
bool has_cuda_ctc(const torch::Tensor& logits_BTV, const Lengths& text_lengths);

// (B) float. Blank is token 0. text is (B, L) int64, padded with anything; tokens must be in 1 ..
// V-1. With zero_infinity an utterance too short for its text costs 0 and has no gradient.
// `logits_are_ours`: nobody reads the logits after the backward pass, which writes their gradient where
// they lie: they are the largest tensor of a step.
torch::Tensor cuda_ctc_loss(const torch::Tensor& logits_BTV, const Lengths& frame_lengths,
                            const torch::Tensor& text_BL, const Lengths& text_lengths,
                            bool zero_infinity, bool logits_are_ours = false);

// The same with lengths_2B (frames, then tokens; int64) in device memory, none of them over the sizes of
// logits and text.
torch::Tensor cuda_ctc_loss(const torch::Tensor& logits_BTV, const torch::Tensor& lengths_2B,
                            const torch::Tensor& text_BL, bool zero_infinity,
                            bool logits_are_ours = false);

}  // namespace tutti::speech
