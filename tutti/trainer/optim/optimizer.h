// Optimizers over named parameters: Adam, AdamW, SGD here, torch's others by their settings, a
// plugin's by a class of its own (registry.h).
//
// Why not torch::optim: its state is keyed by tensor address, its step makes several passes over
// memory, and its zero_grad() of 1.13 breaks gradients that are views into buckets. Ours keys state
// by parameter name (so checkpoints survive a change of strategy or world size) and updates a CPU
// parameter in one pass.
//
//   auto adam = make_optimizer({.kind = OptimizerKind::kAdamW, .lr = 2e-3}, parameters);
//   adam->step(schedule->lr(step), gradient_factor);
//
// Not thread-safe. Parameters without gradient are left alone, and so is their state.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/schemas/optim.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

enum class OptimizerKind { kAdam, kAdamW, kSgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdam;
  double lr = 1e-3;
  double beta1 = 0.9;       // Adam, AdamW
  double beta2 = 0.999;     // Adam, AdamW
  double eps = 1e-8;        // Adam, AdamW
  double weight_decay = 0;  // AdamW: decoupled; Adam, SGD: added to the gradient
  bool amsgrad = false;     // Adam, AdamW
  double momentum = 0;      // SGD
  double dampening = 0;     // SGD
  bool nesterov = false;    // SGD
};

// torch's defaults, e.g. AdamW's weight_decay of 0.01.
OptimizerOptions default_options(OptimizerKind kind);

// What gradients are multiplied with, before a host that need not wait knows it: with norm =
// sqrt(squared_norm) * average it is average * min(1, limit / norm), or average where the limit is 0. A
// norm that is not finite makes no update.
struct ClippedOnDevice {
  at::Tensor squared_norm;  // of all gradients
  double average = 1, limit = 0;
};

class Optimizer {
 public:
  Optimizer(double base_lr, NamedTensors parameters);
  virtual ~Optimizer() = default;

  // One update with every gradient multiplied by `gradient_factor` on the fly.
  void step(double lr, double gradient_factor);
  // The same, where the factor is known to the device alone (see ClippedOnDevice). False: nothing was
  // done, as this optimizer or these tensors cannot.
  bool step_clipped(double lr, const ClippedOnDevice& clipped);
  // After step_clipped() of gradients that were not finite, which left all tensors as they were.
  void uncount_step();
  void zero_grad();  // makes gradients undefined

  // What schedules start from.
  double base_lr() const { return base_lr_; }
  // Momentum, or Adam's first beta, from now on. Throws ConfigError where there is none.
  virtual void set_momentum(double momentum);
  const NamedTensors& parameters() const { return parameters_; }
  std::vector<at::Tensor> gradients() const;  // the defined ones

  // State tensors as "<state>/<parameter>", e.g. "exp_avg/encoder.weight", and update counts as
  // "step/<parameter>". The tensors are the live ones.
  std::map<std::string, at::Tensor> state() const;
  // Throws DataError if a name or shape does not fit. Parameters the state does not have start
  // fresh.
  void load_state(const std::map<std::string, at::Tensor>& state);

 protected:
  virtual void update(double lr, double gradient_factor) = 0;
  virtual bool update_clipped(double, const ClippedOnDevice&) { return false; }

  struct Slot {
    std::int64_t step = 0;
    std::map<std::string, at::Tensor> tensors;
  };
  at::Tensor& slot_tensor(std::size_t index, const std::string& name);

  double base_lr_;
  NamedTensors parameters_;
  std::vector<Slot> slots_;  // by parameter
};
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(NamedTensors parameters)>;

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters);
// With torch's numbers.
std::unique_ptr<Optimizer> make_optimizer(const config::RAdamSettings&, NamedTensors);
std::unique_ptr<Optimizer> make_optimizer(const config::NAdamSettings&, NamedTensors);
std::unique_ptr<Optimizer> make_optimizer(const config::AdagradSettings&, NamedTensors);
std::unique_ptr<Optimizer> make_optimizer(const config::AdadeltaSettings&, NamedTensors);
std::unique_ptr<Optimizer> make_optimizer(const config::RmspropSettings&, NamedTensors);

}  // namespace tutti::trainer
