// The arithmetic of one parameter's update: a single pass over memory on CPUs (float, double,
// contiguous), torch operations everywhere else. Internal to optim/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tutti/trainer/optim/optimizer.h"

namespace tutti::trainer {

struct AdamUpdate {
  at::Tensor parameter;
  at::Tensor gradient;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor max_exp_avg_sq;  // amsgrad only
  std::int64_t step = 1;      // of this update, from 1
  double lr = 0;
  double gradient_factor = 1;
};

struct SgdUpdate {
  at::Tensor parameter;
  at::Tensor gradient;
  at::Tensor momentum_buffer;  // undefined without momentum
  bool first = false;          // torch starts the buffer with the gradient itself
  double lr = 0;
  double gradient_factor = 1;
};

// REQUIRES: no autograd (NoGradGuard).
// Of all parameters; on a GPU in a few kernels.
void apply(const OptimizerOptions& options, std::vector<AdamUpdate>& updates);
// With this factor instead of the updates' own. False: nothing was done, as it takes our kernel.
bool apply_clipped(const OptimizerOptions& options, std::vector<AdamUpdate>& updates,
                   const ClippedOnDevice& clipped);
void apply(const OptimizerOptions& options, SgdUpdate& update);

}  // namespace tutti::trainer
