// Fully sharded data parallel training: each rank holds 1/W of parameters, gradients and optimizer
// state, and borrows the rest unit by unit.
//
//   FsdpOptions options{.units = {.classes = {"EncoderLayer"}}};
//   auto strategy = make_fsdp_strategy(options, world);
//
// Works on GPUs over NCCL and on CPUs over Gloo, with one rank as well (then only offload makes
// sense). The model is any TrainableModel; see watch.h for how its use of weights is seen. Buffers
// are replicated.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/trainer/strategies/strategy.h"
#include "tutti/trainer/strategies/units.h"

namespace tutti::trainer {

struct World;

enum class Sharding {
  kFull,    // weights are let go after forward and gathered again for backward
  kGradOp,  // weights stay from forward to the end of backward: more memory, half the gathers
  kHybrid   // kFull within a node; nodes hold copies of each other
};

struct FsdpOptions {
  Sharding sharding = Sharding::kFull;
  UnitCut units;
  bool cpu_offload = false;  // shards, their gradients and optimizer state in host memory
  // Type of gathered weight matrices, which is the type they compute in: the autocast type of a
  // mixed precision, so that no second copy of them is made. Empty: the model's.
  std::optional<at::ScalarType> gather_type;
  std::optional<at::ScalarType> reduce_type;  // of gradient sums; empty: the model's
  int gathers_in_flight = 2;
};

// `norms`: as make_ddp_strategy's.
std::unique_ptr<Strategy> make_fsdp_strategy(const FsdpOptions& options, World& world,
                                             std::shared_ptr<NormSync> norms = nullptr);

}  // namespace tutti::trainer
