// The numbers the loop runs by, with Lightning's names and meaning. `limit_*`, `val_check_interval`
// count batches per rank; max_steps and log_every_n_steps count optimizer steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/trainer/optim/groups.h"
#include "tutti/trainer/precision.h"

namespace tutti::trainer {

// `1` means one batch, `1.0` means all of them.
struct Amount {
  bool is_fraction = true;
  double value = 1.0;
  static Amount fraction(double f) { return {true, f}; }
  static Amount count(std::int64_t n) { return {false, static_cast<double>(n)}; }
  // Of `total`, at most `total`; a fraction of an unknown total throws ConfigError unless it is
  // all.
  std::optional<std::int64_t> of(std::optional<std::int64_t> total, const char* key) const;
};

enum class LossReduction {
  kGlobal,      // sum of losses over micro-batches and ranks / sum of their weights
  kMeanOfMeans  // Lightning: the mean over ranks and micro-batches of each mean
};
enum class ClipAlgorithm { kNorm, kValue };

struct LoopSettings {
  std::int64_t max_epochs = -1;  // -1: no limit
  std::int64_t max_steps = -1;   // -1: no limit
  std::int64_t min_epochs = 0;   // callbacks cannot end training before both
  std::int64_t min_steps = 0;
  std::optional<double> max_seconds;  // max_time; decided by rank 0's clock
  Amount limit_train_batches;
  Amount limit_val_batches;
  Amount val_check_interval;
  std::optional<int> check_val_every_n_epoch = 1;  // empty: val_check_interval counts across epochs
  int num_sanity_val_steps = 2;                    // -1: all
  int log_every_n_steps = 50;                      // 0: off
  int fast_dev_run = 0;                            // n batches of everything, no files
  Amount overfit_batches = Amount::count(0);
  int accumulate_grad_batches = 1;
  std::map<std::int64_t, int> accumulation;  // the same from an epoch on; empty: always
  std::optional<LastPhase> last_phase;       // of learning rates
  double gradient_clip_val = 0;              // 0: off
  ClipAlgorithm gradient_clip_algorithm = ClipAlgorithm::kNorm;
  LossReduction loss_reduction = LossReduction::kGlobal;
  PrecisionMode precision = PrecisionMode::k32;
  std::vector<std::string> recompute;  // classes of modules; see recompute.h
  bool sync_batchnorm = false;         // of ranks; the strategy does it
  bool deterministic = false;
  bool detect_anomaly = false;
  bool deterministic_warn_only = false;  // operators that cannot be: a warning instead of an error
  std::uint64_t seed = 0;
  std::string device = "cpu";           // "cuda:0"
  int max_nonfinite_steps = 100;        // NaN steps in a row before giving up
  int max_out_of_memory_steps = 10;     // in a row
  std::int64_t save_every_n_steps = 0;  // 0: only after validations and epochs
  double save_every_seconds = 0;        // also after so long, by rank 0's clock; 0: no
  bool keep_saves = false;              // the weights of saves stay, beyond the best and the last:
  int keep_every_n_epochs = 1;          // of those at epochs' ends, every n-th
  int average_best = 0;                 // of each criterion; 0: as many as it keeps
  std::filesystem::path checkpoint_folder;  // empty: no checkpoints
  std::string resume = "auto";              // auto: the newest there; never; or a folder
  bool show_progress = true;
  bool show_model = true;  // a summary of its parts at the start
};

// Throws ConfigError. Applies fast_dev_run and overfit_batches.
LoopSettings validated(LoopSettings settings);

}  // namespace tutti::trainer
