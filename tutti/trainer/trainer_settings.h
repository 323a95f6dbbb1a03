// The `trainer:` block: Lightning's Trainer keys, each with its meaning or a sentence that says what to use
// instead. The struct that the schema fills is the one the loop runs by.
//
//   Problems problems;
//   LoopSettings settings = trainer_schema().parse(config["trainer"], problems);
//   StrategySettings strategy = parse_strategy(settings.strategy, problems);
//   problems.throw_if_any();
//
// `limit_*` and `val_check_interval` count batches per rank; max_steps and log_every_n_steps count optimizer
// steps. Without torch, so that `config check` reads the block with the same code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/config/registry.h"
#include "tutti/config/schemas/types.h"

namespace tutti::trainer {

using config::Amount;

enum class LossReduction {
  kGlobal,      // sum of losses over micro-batches and ranks / sum of their weights
  kMeanOfMeans  // Lightning: the mean over ranks and micro-batches of each mean
};
enum class ClipAlgorithm { kNorm, kValue };
enum class PrecisionMode { k32, k64, k16Mixed, kBf16Mixed, kBf16True };

// "32", "32-true", "16-mixed", "bf16-mixed", "bf16-true", "64-true" and Lightning's short forms.
// Throws ConfigError listing them.
PrecisionMode parse_precision(const std::string& text);
std::string to_string(PrecisionMode mode);

// From an epoch on, learning rates move over to `lr` in so many epochs and stay there.
struct LastPhase {
  std::int64_t first_epoch = 0;
  double lr = 0;
  std::int64_t annealing_epochs = 10;
  bool cosine = true;
};

// Saves whose weights stay, beyond the best and the last: those that one callback asked for, not
// those made for others, for signals or for limits.
struct KeptSaves {
  int every_n_epochs = 0;          // at their ends; 0: none
  std::int64_t every_n_steps = 0;  // these are made for it, too; 0: none
  bool timed = false;              // those of save_every_seconds
  bool validated = false;          // after validations
};

struct LoopSettings {
  // The block's keys.
  std::string accelerator = "auto";
  config::Devices devices;
  int num_nodes = 1;
  config::Node strategy;  // see parse_strategy
  PrecisionMode precision = PrecisionMode::k32;
  std::int64_t max_epochs = -1;  // -1: no limit
  std::int64_t max_steps = -1;   // -1: no limit
  std::int64_t min_epochs = 0;   // callbacks cannot end training before both
  std::int64_t min_steps = 0;
  config::MaxTime max_time;  // decided by rank 0's clock
  Amount limit_train_batches;
  Amount limit_val_batches;
  Amount overfit_batches = Amount::fraction(0);
  Amount val_check_interval;
  std::optional<int> check_val_every_n_epoch = 1;  // empty: val_check_interval counts across epochs
  int num_sanity_val_steps = 2;                    // -1: all
  config::DevRun fast_dev_run;                     // n batches of everything, no files
  config::Accumulation accumulate_grad_batches;
  double gradient_clip_val = 0;  // 0: off
  ClipAlgorithm gradient_clip_algorithm = ClipAlgorithm::kNorm;
  LossReduction loss_reduction = LossReduction::kGlobal;  // loss_average
  int max_nonfinite_steps = 100;                          // NaN steps in a row before giving up
  bool sync_batchnorm = false;                            // of ranks; the strategy does it
  std::vector<std::string>
      recompute;  // activation_checkpointing: classes of modules; see recompute.h
  config::Deterministic deterministic;
  bool detect_anomaly = false;
  std::string float32_matmul_precision = "highest";  // or "high", "medium"; torch's words
  std::string cuda_graphs = "auto";                  // or "false"; see recording.h
  bool enable_checkpointing = true;
  int log_every_n_steps = 50;  // 0: off
  bool show_progress = true;   // enable_progress_bar
  bool show_model = true;      // enable_model_summary: its parts at the start
  config::Node profiler;       // a name or a `_target_` node
  config::Node logger;         // see logger_nodes
  config::Node callbacks;      // a list of `_target_` nodes
  std::string default_root_dir;
  config::Duration timeout{1800};
  std::optional<std::string> requeue_signal = "SIGUSR1";

  // What callbacks of the block set.
  std::optional<LastPhase> last_phase;  // of learning rates
  std::int64_t save_every_n_steps = 0;  // 0: only after validations and epochs
  double save_every_seconds = 0;        // also after so long, by rank 0's clock; 0: no
  std::vector<KeptSaves> kept_saves;    // one for each callback that keeps all of its own
  int average_best = 0;                 // of each criterion; 0: as many as it keeps

  // What the rest of the config and the rank say.
  std::uint64_t seed = 0;
  std::string device = "cpu";               // "cuda:0"
  std::filesystem::path checkpoint_folder;  // empty: no checkpoints
  std::string resume = "auto";              // auto: the newest there; best; never; or a folder
  int max_out_of_memory_steps = 10;         // in a row
};
config::Schema<LoopSettings> trainer_schema();

// Throws ConfigError where the schema would have complained. Applies fast_dev_run and overfit_batches.
LoopSettings validated(LoopSettings settings);

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
StrategySettings parse_strategy(const config::Node& strategy, config::Problems& problems);

// The logger nodes asked for: `logger: {...}` is one, a list several, true and null the default (an
// undefined node stands for it), false none.
std::vector<config::Node> logger_nodes(const config::Node& logger, config::Problems& problems);

// The whole block, with the components that `catalogue` knows.
void check_trainer_block(const config::Node& block, const config::Catalogue& catalogue,
                         config::Problems& problems);

void add_strategy_components(config::Catalogue& catalogue);

}  // namespace tutti::trainer
