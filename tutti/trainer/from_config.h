// From the training config (optimizer, scheduler, trainer, best_model_criterion, seed) to what
// fit() takes. All mistakes are reported at once, before a GPU or a job is taken.
//
//   TrainingPlan plan = plan_training(config, {.exp_dir = "exp/asr", .device = "cuda:0", .rank =
//   0}); FitInputs inputs{..., .settings = plan.loop, .optimizers = plan.optimizers,
//                    .criteria = plan.criteria, .callbacks = plan.callback_pointers(),
//                    .loggers = plan.logger_pointers()};
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/trainer/loop.h"
#include "tutti/trainer/strategies/fsdp.h"
#include "tutti/trainer/trainer_settings.h"
#include "tutti/trainer/world.h"

namespace tutti::trainer {

struct PlanContext {
  std::filesystem::path exp_dir;  // checkpoints go to exp_dir/checkpoints
  std::string device = "cpu";
  int rank = 0;                                  // loggers are made on rank 0 only
  const config::Catalogue* catalogue = nullptr;  // with the plugins' names; null: the built-in ones
};

struct TrainingPlan {
  StrategySettings strategy;
  FsdpOptions fsdp;
  LoopSettings loop;
  std::vector<OptimizerSpec> optimizers;
  std::vector<Criterion> criteria;
  std::vector<std::unique_ptr<Callback>> callbacks;
  std::vector<std::unique_ptr<Logger>> loggers;

  std::string strategy_name() const;  // as in world.h
  // What the config says of it; the caller adds run folder, interface, what must agree.
  WorldOptions world_options(const std::string& device) const;
  std::unique_ptr<Strategy> make_strategy(World& world) const;
  std::vector<Callback*> callback_pointers() const;
  std::vector<Logger*> logger_pointers() const;
};

// Throws ConfigError with every problem found.
TrainingPlan plan_training(const config::Node& config, const PlanContext& context);

}  // namespace tutti::trainer
