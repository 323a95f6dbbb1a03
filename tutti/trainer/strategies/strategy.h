// How one model lives on many ranks: `single`, `ddp` (fsdp plugs in here).
//
// The loop calls, per optimizer window: arm() before the last backward, finish() after it. A group
// is the parameters of one optimizer; most runs have one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/trainer/collectives/collectives.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

class Strategy {
 public:
  virtual ~Strategy() = default;
  // Checks that all ranks have the same parameters (ConfigError names the odd rank and the first
  // difference) and gives them rank 0's values. Called once, on the final device.
  virtual void setup(TrainableModel& model, const std::vector<NamedTensors>& groups) = 0;
  virtual void arm(std::size_t group) = 0;
  // Gradients of the group are summed over ranks when it returns; see Reducer::finish.
  virtual void finish(std::size_t group, bool complete) = 0;
  // The squared 2-norm over all ranks' parts of the gradients: a 0-dim tensor, no host sync.
  virtual at::Tensor squared_norm(const std::vector<at::Tensor>& gradients) = 0;
  virtual std::string name() const = 0;
};

std::unique_ptr<Strategy> make_single_strategy();
std::unique_ptr<Strategy> make_ddp_strategy(Collectives& collectives, Control& control,
                                            bool find_unused);

// The sum of squares of all elements of all gradients, on their device.
at::Tensor local_squared_norm(const std::vector<at::Tensor>& gradients);

// Throws ConfigError on every rank if parameters or buffers differ in name, shape or type.
void check_same_model(TrainableModel& model, Control& control);

}  // namespace tutti::trainer
