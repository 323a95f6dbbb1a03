// Loggers and callbacks of `trainer:`; names and defaults are Lightning's.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tutti/config/registry.h"
#include "tutti/config/schemas/types.h"

namespace tutti::config {

struct TensorBoardSettings {
  std::string save_dir = ".";
  std::optional<std::string> name = "lightning_logs";
  std::optional<std::string> version;
  std::string sub_dir;
  std::string prefix;
};
Schema<TensorBoardSettings> tensorboard_schema();

struct CsvSettings {
  std::string save_dir = ".";
  std::optional<std::string> name = "lightning_logs";
  std::optional<std::string> version;
  std::string prefix;
  int flush_logs_every_n_steps = 1;
};
Schema<CsvSettings> csv_schema();

struct MlflowSettings {
  std::string experiment_name = "lightning_logs";
  std::optional<std::string> run_name;
  std::optional<std::string> tracking_uri;  // file:FOLDER
  std::map<std::string, std::string> tags;
  std::string save_dir = "./mlruns";
  std::string prefix;
};
Schema<MlflowSettings> mlflow_schema();

struct JsonlSettings {
  std::string save_dir = ".";
  std::string file = "metrics.jsonl";
};
Schema<JsonlSettings> jsonl_schema();

struct EarlyStoppingSettings {
  std::string monitor = "valid/loss";
  double min_delta = 0;
  int patience = 3;
  std::string mode = "min";
  bool check_finite = true;
  std::optional<double> stopping_threshold;
  std::optional<double> divergence_threshold;
};
Schema<EarlyStoppingSettings> early_stopping_schema();

// Warns of a loss or an error rate that shall grow, and of an accuracy or BLEU that shall shrink: the
// one rule for criteria, callbacks and plateau schedulers.
void warn_of_direction(const Node& at, const std::string& metric, const std::string& mode,
                       Problems& problems);

struct ModelCheckpointSettings {
  std::string dirpath;
  std::optional<std::string> monitor;
  std::string mode = "min";
  int save_top_k = 1;
  std::optional<int> every_n_train_steps;
  std::optional<int> every_n_epochs;
  std::optional<Duration> train_time_interval;
};
Schema<ModelCheckpointSettings> model_checkpoint_schema();

struct LearningRateMonitorSettings {};
Schema<LearningRateMonitorSettings> learning_rate_monitor_schema();

struct EmaSettings {
  double decay = 0.999;
  int update_every_n_steps = 1;
  int update_starting_at_step = 0;
};
Schema<EmaSettings> ema_schema();

struct SwaSettings {
  double swa_lrs = 0;
  Amount swa_epoch_start =
      Amount::fraction(0.8);  // an epoch counted from 1, or a part of max_epochs
  int annealing_epochs = 10;
  std::string annealing_strategy = "cos";
};
Schema<SwaSettings> swa_schema();

struct TimerSettings {
  MaxTime duration;
};
Schema<TimerSettings> timer_schema();

struct DeviceStatsSettings {
  bool cpu_stats = true;
};
Schema<DeviceStatsSettings> device_stats_schema();

struct AccumulationSettings {
  Accumulation scheduling;
};
Schema<AccumulationSettings> accumulation_schema();

// `trainer.profiler`
struct ProfilerSettings {
  std::string dirpath;  // empty: the experiment's
  std::string filename = "trace";
  int first_step = 5;
  int num_steps = 5;
};
Schema<ProfilerSettings> profiler_schema();

struct AverageCheckpointsSettings {
  int num_checkpoints = 0;  // 0: as many as best_model_criterion keeps
};
Schema<AverageCheckpointsSettings> average_checkpoints_schema();

struct ThroughputSettings {};
Schema<ThroughputSettings> throughput_schema();

void add_callback_components(Catalogue& catalogue);

}  // namespace tutti::config
