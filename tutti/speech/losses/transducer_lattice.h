// Sums over the transducer lattice; transducer_loss.h is the way in.
#pragma once

#include <torch/types.h>

#include "tutti/speech/models/lengths.h"

namespace tutti::speech {

struct LatticeFlows {
  torch::Tensor loss_B;      // -log P, dtype of the inputs
  torch::Tensor blank_flow;  // (B, T, U+1): probability that an alignment takes this blank arc
  torch::Tensor token_flow;  // (B, T, U)
};

LatticeFlows lattice_flows(const torch::Tensor& blank_BTU, const torch::Tensor& token_BTU,
                           const Lengths& frames, const Lengths& tokens);

// The same by anti-diagonals, on any device; what lattice_flows uses off the CPU.
LatticeFlows lattice_flows_by_diagonals(const torch::Tensor& blank_BTU,
                                        const torch::Tensor& token_BTU, const Lengths& frames,
                                        const Lengths& tokens);

}  // namespace tutti::speech
