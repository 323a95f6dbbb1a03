// Loggers and callbacks of `trainer:`; names and defaults are Lightning's.
#pragma once

#include <optional>
#include <string>

#include "tutti/config/registry.h"

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
  int flush_logs_every_n_steps = 100;
};
Schema<CsvSettings> csv_schema();

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

struct LearningRateMonitorSettings {
  std::optional<std::string> logging_interval;
};
Schema<LearningRateMonitorSettings> learning_rate_monitor_schema();

struct EmaSettings {
  double decay = 0.999;
  int update_every_n_steps = 1;
  int update_starting_at_step = 0;
};
Schema<EmaSettings> ema_schema();

struct AverageCheckpointsSettings {
  int num_checkpoints = 0;  // 0: as many as best_model_criterion keeps
};
Schema<AverageCheckpointsSettings> average_checkpoints_schema();

struct ThroughputSettings {
  int window_size = 100;
};
Schema<ThroughputSettings> throughput_schema();

void add_callback_components(Catalogue& catalogue);

}  // namespace tutti::config
