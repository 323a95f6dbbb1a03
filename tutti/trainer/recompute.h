// Activation checkpointing: keep a block's inputs instead of everything inside it, and compute the
// inside again in the backward pass. Trades about a third more arithmetic for memory.
//
//   x = checkpointed([&](const torch::Tensor& x) { return block->forward(x, context); }, x,
//                    block->parameters());
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/trainer/model.h"

namespace tutti::trainer {

// `function` runs twice: now without a graph, and in the backward pass with the random numbers and
// the autocast state of now, so dropout drops the same. `parameters` are what it uses besides x;
// their gradients go through the ordinary graph (hooks of gradient reducers see them). Without
// gradients wanted it is a plain call. What `function` captures must outlive the backward pass.
torch::Tensor checkpointed(std::function<torch::Tensor(const torch::Tensor&)> function,
                           const torch::Tensor& x, const std::vector<torch::Tensor>& parameters);

// A module that calls itself through checkpointed() when asked to: a second base of layers.
class Recomputable {
 public:
  virtual ~Recomputable() = default;
  void set_recompute(bool on) { recompute_ = on; }
  bool recomputes() const { return recompute_; }

 private:
  bool recompute_ = false;
};

// Asks all modules of these classes ("ConformerBlock") to. Throws ConfigError naming the possible
// ones.
void enable_recomputation(TrainableModel& model, const std::vector<std::string>& classes);

}  // namespace tutti::trainer
