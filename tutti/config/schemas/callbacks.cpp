#include "tutti/config/schemas/callbacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "tutti/core/text.h"

namespace tutti::config {

void warn_of_direction(const Node& at, const std::string& metric, const std::string& mode,
                       Problems& problems) {
  std::string name = metric.substr(metric.rfind('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::vector<std::string> words = split(name, '_');
  const auto has = [&](std::initializer_list<const char*> known) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return std::find(known.begin(), known.end(), word) != known.end();
    });
  };
  const bool shrinks = has({"loss", "cer", "wer", "ter", "ppl"});
  const bool grows = !shrinks && has({"acc", "accuracy", "bleu"});
  if ((shrinks && mode == "max") || (grows && mode == "min"))
    problems.warn(at, fmt::format("got {} for {}: the worst would count as best", mode, metric),
                  shrinks ? "use min" : "use max");
}

// Of a callback with `monitor` and `mode`.
static void check_direction(const Node& node, const std::string& metric, const std::string& mode,
                            Problems& problems) {
  warn_of_direction(node[node["mode"].defined() ? "mode" : "monitor"], metric, mode, problems);
}

Schema<TensorBoardSettings> tensorboard_schema() {
  using S = TensorBoardSettings;
  Schema<S> s("tensorboard", "TensorBoard event files under save_dir/name/version.");
  s.field("save_dir", &S::save_dir, "folder of the logs");
  s.field("name", &S::name, "folder under save_dir; null or empty: none");
  s.field(
      "version", &S::version,
      "folder under name; a number N: version_N; null: the next free version_N, where a resumed "
      "run goes on; empty: none");
  s.field("sub_dir", &S::sub_dir, "folder under version for the event files");
  s.field("prefix", &S::prefix, "put before each metric's name");
  s.refused("log_graph", {"false", "False"}, "remove it: graphs are not traced");
  s.refused("default_hp_metric", {"true", "True", "false", "False"}, "remove it");
  return s;
}

Schema<CsvSettings> csv_schema() {
  using S = CsvSettings;
  Schema<S> s("csv", "metrics.csv under save_dir/name/version, as Lightning writes it.");
  s.field("save_dir", &S::save_dir, "folder of the logs");
  s.field("name", &S::name, "folder under save_dir; null or empty: none");
  s.field(
      "version", &S::version,
      "folder under name; a number N: version_N; null: the next free version_N, where a resumed "
      "run goes on; empty: none");
  s.field("prefix", &S::prefix, "put before each metric's name");
  s.field("flush_logs_every_n_steps", &S::flush_logs_every_n_steps,
          "write so many lines at once; what a killed run had not written is lost", {.min = 1});
  return s;
}

Schema<MlflowSettings> mlflow_schema() {
  using S = MlflowSettings;
  Schema<S> s("mlflow", "A run in MLflow's file store; `mlflow ui` shows it.");
  s.field("experiment_name", &S::experiment_name, "name of the experiment");
  s.field("run_name", &S::run_name, "name of the run; null: that of exp_dir");
  s.field("tracking_uri", &S::tracking_uri, "file:FOLDER; null: save_dir");
  s.field("tags", &S::tags, "of the run");
  s.field("save_dir", &S::save_dir, "folder of the store");
  s.field("prefix", &S::prefix, "put before each metric's name");
  s.refused("log_model", {"false", "False"}, "use the pack_model stage, and upload its folder");
  s.refused("artifact_location", {}, "remove it: artifacts are not copied");
  s.refused("run_id", {}, "remove it: a resumed run goes on in its own run");
  s.refused("synchronous", {"true", "True", "false", "False"}, "remove it");
  s.refused("checkpoint_path_prefix", {""}, "remove it: artifacts are not copied");
  s.check([](const Node& node, const S& settings, Problems& problems) {
    if (settings.tracking_uri && settings.tracking_uri->find("://") != std::string::npos &&
        !settings.tracking_uri->starts_with("file:"))
      problems.add(node["tracking_uri"],
                   "got '" + *settings.tracking_uri + "', expected file:FOLDER",
                   "write files here, and show them with `mlflow ui --backend-store-uri FOLDER`");
  });
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
  s.check([](const Node& node, const S& settings, Problems& problems) {
    check_direction(node, settings.monitor, settings.mode, problems);
  });
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
          "look at every so many epochs only; the newest is there always",
          {.min = 1, .unit = "epochs"});
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
    if (settings.monitor) check_direction(node, *settings.monitor, settings.mode, problems);
  });
  return s;
}

Schema<LearningRateMonitorSettings> learning_rate_monitor_schema() {
  using S = LearningRateMonitorSettings;
  Schema<S> s("learning_rate_monitor", "Logs the learning rate of every optimizer.");
  s.refused("logging_interval", {"step"},
            "remove it: rates are written with every log line (trainer.log_every_n_steps)");
  s.refused("log_momentum", {"false", "False"}, "remove it");
  s.refused("log_weight_decay", {"false", "False"}, "remove it");
  return s;
}

Schema<EmaSettings> ema_schema() {
  Schema<EmaSettings> s(
      "ema", "Exponential moving average of the weights: validated, kept, averaged and packed.");
  s.field("decay", &EmaSettings::decay, "weight of the old average", {.min = 0, .max = 1});
  s.field("update_every_n_steps", &EmaSettings::update_every_n_steps,
          "updates between two averages", {.min = 1});
  s.field("update_starting_at_step", &EmaSettings::update_starting_at_step,
          "first update that is averaged", {.min = 0});
  return s;
}

Schema<SwaSettings> swa_schema() {
  using S = SwaSettings;
  Schema<S> s("swa",
              "Mean of the weights at the ends of the last epochs: validated, kept and packed.");
  s.field("swa_lrs", &S::swa_lrs, "learning rate of these epochs", {.min = 0, .required = true});
  s.field("swa_epoch_start", &S::swa_epoch_start,
          "first of them: a number counted from 1, or a part of max_epochs (0.8)");
  s.field("annealing_epochs", &S::annealing_epochs, "epochs in which the rate moves to swa_lrs",
          {.min = 0});
  s.field("annealing_strategy", &S::annealing_strategy, "shape of that",
          {.one_of = {"cos", "linear"}});
  s.refused("avg_fn", {}, "remove it: equal weights; or use ema");
  s.refused("device", {"cpu", "cuda"}, "remove it: the mean is beside the weights");
  return s;
}

Schema<TimerSettings> timer_schema() {
  Schema<TimerSettings> s("timer", "Ends training after a time, as trainer.max_time does.");
  s.field("duration", &TimerSettings::duration, "wall time, then save and stop",
          {.required = true});
  s.refused("interval", {"step"}, "remove it: the time is looked at after every step");
  s.refused("verbose", {"true", "True", "false", "False"}, "remove it");
  return s;
}

Schema<DeviceStatsSettings> device_stats_schema() {
  Schema<DeviceStatsSettings> s("device_stats",
                                "Memory of the GPU and of the process, per log line.");
  s.field("cpu_stats", &DeviceStatsSettings::cpu_stats, "also the process's memory and CPU time");
  return s;
}

Schema<AccumulationSettings> accumulation_schema() {
  Schema<AccumulationSettings> s(
      "gradient_accumulation", "Batches per update by epoch, as trainer.accumulate_grad_batches.");
  s.field("scheduling", &AccumulationSettings::scheduling, "{epoch: batches}, epochs from 0",
          {.required = true});
  return s;
}

Schema<ProfilerSettings> profiler_schema() {
  using S = ProfilerSettings;
  Schema<S> s("pytorch",
              "A Chrome trace of some steps: chrome://tracing or ui.perfetto.dev show it.");
  s.field("dirpath", &S::dirpath, "folder; empty: the experiment's");
  s.field("filename", &S::filename, "the file is FILENAME-rankN.json");
  s.field("first_step", &S::first_step, "updates before it begins", {.min = 0, .unit = "updates"});
  s.field("num_steps", &S::num_steps, "updates in it", {.min = 1, .unit = "updates"});
  for (const char* key : {"group_by_input_shapes", "emit_nvtx", "record_module_names",
                          "export_to_chrome", "row_limit", "sort_by_key"})
    s.refused(key, {"true", "True", "false", "False"}, "remove it: a Chrome trace is written");
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
  s.refused("window_size", {},
            "remove it: averages are over the steps of a log line (trainer.log_every_n_steps)");
  s.refused("batch_size_fn", {}, "remove it: sizes are known");
  s.refused("length_fn", {}, "remove it: lengths are known");
  return s;
}

void add_callback_components(Catalogue& catalogue) {
  const std::string loggers = "lightning.pytorch.loggers.";
  catalogue.add("logger", tensorboard_schema(), {loggers + "TensorBoardLogger"});
  catalogue.add("logger", csv_schema(), {loggers + "CSVLogger"});
  catalogue.add("logger", jsonl_schema());
  catalogue.add("logger", mlflow_schema(), {loggers + "MLFlowLogger"});
  for (const char* name : {"WandbLogger", "NeptuneLogger", "CometLogger"})
    catalogue.instead(
        "logger", loggers + name,
        "use TensorBoardLogger, csv, mlflow or jsonl, and upload their files; or a plugin's");

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
    catalogue.instead(
        "callback", callbacks + name,
        "remove it: use trainer.enable_progress_bar and trainer.enable_model_summary");
  catalogue.instead("callback", "espnet3.components.callbacks.default_callbacks.MetricsLogger",
                    "remove it: metrics are logged always");
  catalogue.add("callback", timer_schema(), {callbacks + "Timer"});
  catalogue.add("callback", accumulation_schema(), {callbacks + "GradientAccumulationScheduler"});
  catalogue.add("callback", swa_schema(), {callbacks + "StochasticWeightAveraging"});
  catalogue.add("callback", device_stats_schema(), {callbacks + "DeviceStatsMonitor"});
  for (const char* name : {"BatchSizeFinder", "LearningRateFinder"})
    catalogue.instead("callback", callbacks + name,
                      "set batch_bins and lr yourself: nothing is searched for here");
  for (const char* name : {"BaseFinetuning", "BackboneFinetuning"})
    catalogue.instead(
        "callback", callbacks + name,
        "use param_groups with lr: 0 for the parts that stay, and start again without");
  catalogue.instead("callback", callbacks + "ModelPruning",
                    "remove it: weights are not pruned here");
  catalogue.instead("callback", callbacks + "OnExceptionCheckpoint",
                    "remove it: the newest checkpoint is there after an error");
  catalogue.instead("callback", callbacks + "SpikeDetection",
                    "remove it: NaN steps are dropped and their utterances named");
  catalogue.instead("callback", callbacks + "BasePredictionWriter",
                    "remove it: the infer stage writes predictions");
  catalogue.instead("callback", callbacks + "LambdaCallback", "use a plugin's callback");
  catalogue.instead("callback", callbacks + "WeightAveraging", "use ema or swa");

  const std::string profilers = "lightning.pytorch.profilers.";
  catalogue.add("profiler", profiler_schema(), {profilers + "PyTorchProfiler", "chrome_trace"});
  for (const char* name : {"simple", "advanced", "xla"})
    catalogue.instead(
        "profiler", name,
        "times per step are in metrics.jsonl (time/...); use profiler: pytorch for all "
        "operations");
  for (const char* name : {"SimpleProfiler", "AdvancedProfiler", "PassThroughProfiler"})
    catalogue.instead(
        "profiler", profilers + name,
        "times per step are in metrics.jsonl (time/...); use profiler: pytorch for all "
        "operations");
}

}  // namespace tutti::config
