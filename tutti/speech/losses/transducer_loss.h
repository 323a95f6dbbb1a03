// The transducer (RNN-T) loss: -log of the sum over all alignments of a text with the frames.
//
// The lattice of an utterance has a node for every (frame t, tokens emitted u). A blank arc goes to
// t+1, a token arc to u+1; the last blank leaves the lattice. Forward and backward sums over the
// lattice give the loss and, as flows through the arcs, its gradient.
//
// What costs memory is not the lattice but the joint network's output, (B, T, U+1, V). The fused
// form never holds it: logits are made for a slice of nodes at a time, reduced to two numbers per
// node, and made again in the backward pass. Padded nodes are not computed at all.
#pragma once

#include <torch/types.h>

#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/modules.h"

namespace tutti::speech {

// Losses (B) from log-probabilities of the arcs: blank (B, T, U+1), token (B, T, U).
// Differentiable. On the CPU a loop in double precision; elsewhere by anti-diagonals with tensor
// operations.
torch::Tensor transducer_lattice_loss(const torch::Tensor& blank_BTU,
                                      const torch::Tensor& token_BTU, const Lengths& frames,
                                      const Lengths& tokens);

// Losses (B) from logits (B, T, U+1, V); texts (B, U) int64. The plain form, for tests and small
// models.
torch::Tensor transducer_loss(const torch::Tensor& logits_BTUV, const torch::Tensor& texts_BU,
                              const Lengths& frames, const Lengths& tokens, std::int64_t blank = 0);

// What the joint network is made of after its two projections.
struct JointOutput {
  torch::Tensor weight_VJ, bias_V;
  Activation activation = Activation::kTanh;
};

// The fused form: projected encoder frames (B, T, J) and predictor outputs (B, U+1, J).
// `slice_elements` bounds the logits in memory at a time.
torch::Tensor fused_transducer_loss(const torch::Tensor& encoded_BTJ,
                                    const torch::Tensor& predicted_BUJ, const JointOutput& joint,
                                    const torch::Tensor& texts_BU, const Lengths& frames,
                                    const Lengths& tokens, std::int64_t blank = 0,
                                    std::int64_t slice_elements = std::int64_t{1} << 24);

}  // namespace tutti::speech
