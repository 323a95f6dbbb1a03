#include "tutti/config/schemas/callbacks.h"

#include <fmt/format.h>

namespace tutti::config {

Schema<TensorBoardSettings> tensorboard_schema() {
  using S = TensorBoardSettings;
  Schema<S> s("tensorboard", "TensorBoard event files under save_dir/name/version.");
  s.field("save_dir", &S::save_dir, "folder of the logs");
  s.field("name", &S::name, "folder under save_dir; null or empty: none");
  s.field("version", &S::version,
          "folder under name; null: none, so that a resumed run goes on there");
  s.field("sub_dir", &S::sub_dir, "folder under version for the event files");
  s.field("prefix", &S::prefix, "put before each metric's name");
  s.refused("log_graph", {"false", "False"}, "remove it: graphs are not traced");
  s.refused("default_hp_metric", {"true", "True", "false", "False"}, "remove it");
  return s;
}

Schema<CsvSettings> csv_schema() {
  using S = CsvSettings;
  Schema<S> s("csv", "metrics.csv under save_dir/name/version.");
  s.field("save_dir", &S::save_dir, "folder of the logs");
  s.field("name", &S::name, "folder under save_dir; null or empty: none");
  s.field("version", &S::version,
          "folder under name; null: none, so that a resumed run goes on there");
  s.field("prefix", &S::prefix, "put before each metric's name");
  s.field("flush_logs_every_n_steps", &S::flush_logs_every_n_steps, "how often the file is written",
          {.min = 1});
  return s;
}

Schema<JsonlSettings> jsonl_schema() {
  Schema<JsonlSettings> s("jsonl", "One JSON object per log line.");
  s.field("save_dir", &JsonlSettings::save_dir, "folder of the file");
  s.field("file", &JsonlSettings::file, "name of the file");
  return s;
}

Schema<EarlyStoppingSettings> early_stopping_schema() {
  using S = EarlyStoppingSettings;
  Schema<S> s("early_stopping", "Stops when a metric no longer improves.");
  s.field("monitor", &S::monitor, "metric to watch");
  s.field("min_delta", &S::min_delta, "change that counts as improvement", {.min = 0});
  s.field("patience", &S::patience, "validations without improvement before it stops", {.min = 0});
  s.field("mode", &S::mode, "min: lower is better", {.one_of = {"min", "max"}});
  s.field("check_finite", &S::check_finite, "stop when the metric is NaN or infinite");
  s.field("stopping_threshold", &S::stopping_threshold, "stop at once when this is reached");
  s.field("divergence_threshold", &S::divergence_threshold, "stop at once when worse than this");
  for (const char* key : {"strict", "verbose", "log_rank_zero_only"})
    s.refused(key, {"true", "True", "false", "False"}, "remove it");
  s.refused("check_on_train_epoch_end", {"false", "False"},
            "remove it: the check is made after each validation");
  return s;
}

Schema<ModelCheckpointSettings> model_checkpoint_schema() {
  using S = ModelCheckpointSettings;
  Schema<S> s("model_checkpoint", "Keeps checkpoints beyond those of best_model_criterion.");
  s.field("dirpath", &S::dirpath, "folder; empty: the experiment's");
  s.field("monitor", &S::monitor,
          "metric that decides which are best; null: the newest, or with save_top_k -1 all");
  s.field("mode", &S::mode, "min: lower is better", {.one_of = {"min", "max"}});
  s.field("save_top_k", &S::save_top_k, "how many to keep; -1: all, 0: none", {.min = -1});
  s.field("every_n_train_steps", &S::every_n_train_steps, "save every so many updates",
          {.min = 1, .unit = "updates"});
  s.field("every_n_epochs", &S::every_n_epochs,
          "with save_top_k -1: keep those of every so many epochs", {.min = 1, .unit = "epochs"});
  s.field("train_time_interval", &S::train_time_interval, "save every so often");
  s.refused("filename", {}, "remove it: files are named epochE_stepS_METRIC");
  s.refused("save_last", {"true", "True", "false", "False", "link"},
            "remove it: `last` is always there");
  s.refused("save_weights_only", {"true", "True", "false", "False"},
            "remove it: the best are weights only, the last has all that resuming needs");
  s.refused("verbose", {"false", "False", "true", "True"}, "remove it: each save is logged");
  s.refused("save_on_train_epoch_end", {"false", "False", "true", "True"},
            "remove it: saves follow validation where there is one");
  s.refused("auto_insert_metric_name", {"true", "True", "false", "False"},
            "remove it: names are as filename says");
  s.refused("enable_version_counter", {"true", "True", "false", "False"},
            "remove it: an existing file is replaced whole");
  s.refused("save_on_exception", {"false", "False"}, "remove it: resume from `last`");
  s.check([](const Node& node, const S& settings, Problems& problems) {
    const int triggers = settings.every_n_train_steps.has_value() +
                         settings.every_n_epochs.has_value() +
                         settings.train_time_interval.has_value();
    if (triggers > 1)
      problems.add(node,
                   fmt::format("got {} of every_n_train_steps, every_n_epochs, "
                               "train_time_interval, expected at most one",
                               triggers),
                   "use one callback per trigger");
    if (!settings.monitor && (settings.save_top_k > 1 || settings.save_top_k < -1))
      problems.add(node["save_top_k"],
                   fmt::format("got {} without monitor, expected -1, 0 or 1", settings.save_top_k),
                   "add monitor: valid/loss");
  });
  return s;
}

Schema<LearningRateMonitorSettings> learning_rate_monitor_schema() {
  using S = LearningRateMonitorSettings;
  Schema<S> s("learning_rate_monitor", "Logs the learning rate of every optimizer.");
  s.field("logging_interval", &S::logging_interval, "null: with every log line",
          {.one_of = {"step", "epoch"}});
  s.refused("log_momentum", {"false", "False"}, "remove it");
  s.refused("log_weight_decay", {"false", "False"}, "remove it");
  return s;
}

Schema<EmaSettings> ema_schema() {
  Schema<EmaSettings> s(
      "ema",
      "Exponential moving average of the weights, used for validation and saved beside them.");
  s.field("decay", &EmaSettings::decay, "weight of the old average", {.min = 0, .max = 1});
  s.field("update_every_n_steps", &EmaSettings::update_every_n_steps,
          "updates between two averages", {.min = 1});
  s.field("update_starting_at_step", &EmaSettings::update_starting_at_step,
          "first update that is averaged", {.min = 0});
  return s;
}

Schema<AverageCheckpointsSettings> average_checkpoints_schema() {
  Schema<AverageCheckpointsSettings> s("average_checkpoints",
                                       "Averages the best checkpoints of each criterion.");
  s.field("num_checkpoints", &AverageCheckpointsSettings::num_checkpoints,
          "how many; 0: as many as best_model_criterion keeps", {.min = 0});
  for (const char* key : {"best_ckpt_callbacks", "output_dir"})
    s.refused(key, {}, "remove it: taken from best_model_criterion and exp_dir");
  return s;
}

Schema<ThroughputSettings> throughput_schema() {
  Schema<ThroughputSettings> s(
      "throughput", "Items and audio seconds per second, share of time spent waiting for data.");
  s.field("window_size", &ThroughputSettings::window_size, "updates averaged over", {.min = 1});
  s.refused("batch_size_fn", {}, "remove it: sizes are known");
  s.refused("length_fn", {}, "remove it: lengths are known");
  return s;
}

void add_callback_components(Catalogue& catalogue) {
  const std::string loggers = "lightning.pytorch.loggers.";
  catalogue.add("logger", tensorboard_schema(), {loggers + "TensorBoardLogger"});
  catalogue.add("logger", csv_schema(), {loggers + "CSVLogger"});
  catalogue.add("logger", jsonl_schema());
  for (const char* name : {"WandbLogger", "MLFlowLogger", "NeptuneLogger", "CometLogger"})
    catalogue.instead("logger", loggers + name,
                      "use TensorBoardLogger, csv or jsonl, and upload their files");

  const std::string callbacks = "lightning.pytorch.callbacks.";
  catalogue.add("callback", early_stopping_schema(), {callbacks + "EarlyStopping"});
  catalogue.add("callback", model_checkpoint_schema(), {callbacks + "ModelCheckpoint"});
  catalogue.add("callback", learning_rate_monitor_schema(), {callbacks + "LearningRateMonitor"});
  catalogue.add("callback", ema_schema(), {callbacks + "EMAWeightAveraging"});
  catalogue.add("callback", average_checkpoints_schema(),
                {"espnet3.components.callbacks.default_callbacks.AverageCheckpointsCallback"});
  catalogue.add("callback", throughput_schema(), {callbacks + "ThroughputMonitor"});
  for (const char* name :
       {"TQDMProgressBar", "RichProgressBar", "ProgressBar", "ModelSummary", "RichModelSummary"})
    catalogue.instead("callback", callbacks + name,
                      "remove it: progress is shown unless enable_progress_bar is false");
  catalogue.instead("callback", "espnet3.components.callbacks.default_callbacks.MetricsLogger",
                    "remove it: metrics are logged always");
  catalogue.instead("callback", callbacks + "Timer", "use trainer.max_time");
  catalogue.instead("callback", callbacks + "GradientAccumulationScheduler",
                    "use trainer.accumulate_grad_batches");
  catalogue.instead("callback", callbacks + "StochasticWeightAveraging",
                    "use ema or average_checkpoints");
  catalogue.instead("callback", callbacks + "DeviceStatsMonitor", "use throughput");
}

}  // namespace tutti::config
