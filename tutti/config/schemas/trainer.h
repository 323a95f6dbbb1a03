// The `trainer:` block: Lightning's Trainer keys, each with its meaning or a sentence that says
// what to use instead. Every one of Lightning's 42 arguments is answered.
//
//   Problems problems;
//   TrainerSettings trainer = trainer_schema().parse(config["trainer"], problems);
//   StrategySettings strategy = parse_strategy(trainer.strategy, problems);
//   problems.throw_if_any();
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/config/registry.h"
#include "tutti/config/schemas/types.h"

namespace tutti::config {

struct TrainerSettings {
  std::string accelerator = "auto";
  Devices devices;
  int num_nodes = 1;
  Node strategy;  // see parse_strategy
  PrecisionName precision;

  std::optional<std::int64_t> max_epochs;  // null: no limit of its own; -1: without end
  std::int64_t max_steps = -1;             // optimizer updates; -1: no limit
  std::int64_t min_epochs = 0;
  std::int64_t min_steps = 0;
  MaxTime max_time;
  BatchLimit limit_train_batches;
  BatchLimit limit_val_batches;
  BatchLimit overfit_batches{.part = 0.0};
  BatchLimit val_check_interval;  // counts batches, not updates
  std::optional<int> check_val_every_n_epoch = 1;
  int num_sanity_val_steps = 2;
  DevRun fast_dev_run;

  Accumulation accumulate_grad_batches;
  std::optional<double> gradient_clip_val;
  std::string gradient_clip_algorithm = "norm";
  std::string loss_average = "global";
  int max_nonfinite_steps = 100;
  bool sync_batchnorm = false;
  std::vector<std::string> activation_checkpointing;  // with fsdp also under strategy

  Deterministic deterministic;
  bool detect_anomaly = false;
  bool enable_checkpointing = true;
  Node profiler;  // a name or a `_target_` node
  int log_every_n_steps = 50;
  bool enable_progress_bar = true;
  bool enable_model_summary = true;
  Node logger;     // see logger_nodes
  Node callbacks;  // a list of `_target_` nodes
  std::string default_root_dir;
  Duration timeout{1800};
  std::optional<std::string> requeue_signal = "SIGUSR1";
};
Schema<TrainerSettings> trainer_schema();

// `strategy:` as text or as a `_target_` node.
struct StrategySettings {
  std::string name = "auto";  // auto, single_device, ddp, fsdp
  bool find_unused_parameters = false;
  double bucket_cap_mb = 25;
  // fsdp
  std::string sharding_strategy = "full_shard";
  std::vector<std::string> units;
  std::int64_t unit_min_params = 1'000'000;
  bool cpu_offload = false;
  std::string param_precision;   // empty: as trainer.precision
  std::string reduce_precision;  // empty: 32
  std::vector<std::string> activation_checkpointing;
  int gathers_in_flight = 2;
};
StrategySettings parse_strategy(const Node& strategy, Problems& problems);

// The logger nodes asked for: `logger: {...}` is one, a list several, true and null the default (an
// undefined node stands for it), false none.
std::vector<Node> logger_nodes(const Node& logger, Problems& problems);

void add_strategy_components(Catalogue& catalogue);

}  // namespace tutti::config
