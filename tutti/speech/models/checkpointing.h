// Activation checkpointing: keep a block's inputs instead of everything inside it, and compute the
// inside again in the backward pass. Trades about a third more arithmetic for memory.
//
//   x = checkpointed([&](const torch::Tensor& x) { return block->forward(x, context); }, x,
//                    block->parameters());
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace tutti::speech {

// `function` runs twice: now without a graph, and in the backward pass with the random numbers and
// the autocast state of now, so dropout drops the same. `parameters` are what it uses besides x;
// their gradients go through the ordinary graph (hooks of gradient reducers see them). Without
// gradients wanted it is a plain call. What `function` captures must outlive the backward pass.
torch::Tensor checkpointed(std::function<torch::Tensor(const torch::Tensor&)> function,
                           const torch::Tensor& x, const std::vector<torch::Tensor>& parameters);

}  // namespace tutti::speech
