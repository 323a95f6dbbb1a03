#include "tutti/config/schemas/trainer.h"

#include <fmt/format.h>

#include "tutti/config/schemas/callbacks.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

using S = TrainerSettings;

void add_where_and_how(Schema<S>& s) {
  s.field("accelerator", &S::accelerator, "where to train; auto: GPUs if there are any",
          {.one_of = {"auto", "cpu", "gpu", "cuda"}});
  s.field("devices", &S::devices, "devices per node; auto and -1: all, or what the launcher gave");
  s.field("num_nodes", &S::num_nodes, "machines", {.min = 1});
  s.field("strategy", &S::strategy,
          "auto, single_device, ddp, ddp_find_unused_parameters_true, fsdp, fsdp_cpu_offload, or a "
          "_target_ node");
  s.field("precision", &S::precision,
          "number formats; 16 and bf16 are read as 16-mixed and bf16-mixed");
  s.field("deterministic", &S::deterministic, "the same bits on every run, at some cost");
  s.field("detect_anomaly", &S::detect_anomaly,
          "name the operation whose backward pass makes NaN; slow");
  s.field("timeout", &S::timeout,
          "how long ranks wait for one another before the missing one is named");
  s.field("requeue_signal", &S::requeue_signal,
          "on which Slurm is asked to requeue the job; null: never",
          {.one_of = {"SIGUSR1", "SIGUSR2", "SIGHUP"}});
}

void add_how_long(Schema<S>& s) {
  s.field("max_epochs", &S::max_epochs, "passes over the data; -1: without end", {.min = -1});
  s.field("max_steps", &S::max_steps, "optimizer updates; -1: no limit",
          {.min = -1, .unit = "updates"});
  s.field("min_epochs", &S::min_epochs, "callbacks cannot end training before", {.min = 0});
  s.field("min_steps", &S::min_steps, "callbacks cannot end training before",
          {.min = 0, .unit = "updates"});
  s.field("max_time", &S::max_time, "wall time, then save and stop");
  s.field("limit_train_batches", &S::limit_train_batches, "per rank and epoch");
  s.field("limit_val_batches", &S::limit_val_batches, "per rank and validation");
  s.field("overfit_batches", &S::overfit_batches,
          "train and validate on these only, unshuffled; 0.0: off");
  s.field("val_check_interval", &S::val_check_interval,
          "validate after so many batches, or parts of an epoch");
  s.field("check_val_every_n_epoch", &S::check_val_every_n_epoch,
          "validate in every n-th epoch; null: val_check_interval counts across epochs",
          {.min = 1});
  s.field("num_sanity_val_steps", &S::num_sanity_val_steps,
          "validation batches to try before training; -1: all", {.min = -1, .unit = "batches"});
  s.field("fast_dev_run", &S::fast_dev_run, "try so many batches of everything, write nothing");
}

void add_updates(Schema<S>& s) {
  s.field("accumulate_grad_batches", &S::accumulate_grad_batches,
          "batches per update; ranks meet once per update");
  s.field("gradient_clip_val", &S::gradient_clip_val, "limit of the gradient; null or 0: none",
          {.min = 0});
  s.field("gradient_clip_algorithm", &S::gradient_clip_algorithm,
          "norm: of all ranks' gradients together; value: each element",
          {.one_of = {"norm", "value"}});
  s.field("loss_average", &S::loss_average,
          "global: over the true weight of all ranks; mean_of_means: as Lightning does",
          {.one_of = {"global", "mean_of_means"}});
  s.field("max_nonfinite_steps", &S::max_nonfinite_steps,
          "steps in a row that are dropped because a loss or gradient is NaN or infinite; then it "
          "is an error",
          {.min = 1, .unit = "updates"});
  s.field("sync_batchnorm", &S::sync_batchnorm,
          "batch norm (of conformers) counts the frames of all ranks");
  s.field("activation_checkpointing", &S::activation_checkpointing,
          "module classes computed again in the backward pass instead of kept: less memory, a "
          "third more time");
}

void add_output(Schema<S>& s) {
  s.field("log_every_n_steps", &S::log_every_n_steps, "updates between log lines; 0: none",
          {.min = 0, .unit = "updates"});
  s.field("enable_progress_bar", &S::enable_progress_bar, "a line that shows how far it is");
  s.field("enable_model_summary", &S::enable_model_summary,
          "the model's parts and their sizes at the start");
  s.field("logger", &S::logger,
          "one _target_ node or a list of them; true: TensorBoard; false: none");
  s.field("callbacks", &S::callbacks, "a list of _target_ nodes");
  s.field("profiler", &S::profiler,
          "pytorch: a Chrome trace of some steps per rank; or a _target_ node");
  s.field("enable_checkpointing", &S::enable_checkpointing,
          "false: nothing is saved, and nothing can be resumed");
  s.field("default_root_dir", &S::default_root_dir, "where files go; empty: exp_dir");
}

void add_refused(Schema<S>& s) {
  const std::vector<std::string> yes = {"true", "True"};
  const std::vector<std::string> no = {"false", "False"};
  const std::vector<std::string> either = {"true", "True", "false", "False"};
  s.refused("limit_test_batches", {"1.0"},
            "the test set is decoded by the infer stage: limit dataset.test there");
  s.refused("limit_predict_batches", {"1.0"},
            "prediction is the infer stage: limit dataset.test there");
  s.refused("benchmark", no, "remove it: speech batches change shape too often for it to pay");
  s.refused("inference_mode", yes, "remove it: validation never records gradients");
  s.refused("use_distributed_sampler", yes,
            "remove it: batches are always split over the ranks; for the same data on all of them "
            "give each as many copies as there are ranks");
  s.refused("barebones", no,
            "set logger: false, enable_progress_bar: false and num_sanity_val_steps: 0");
  s.refused("plugins", {},
            "use trainer.precision and trainer.strategy; shared libraries go into the top-level "
            "plugins:");
  s.refused("reload_dataloaders_every_n_epochs", {"0", "1"},
            "remove it: batches are planned anew for each epoch");
  s.refused("enable_autolog_hparams", either,
            "remove it: the resolved config is saved beside the results");
  s.refused("model_registry", {}, "use the pack_model stage");
  s.refused("suggest_integrations", either, "remove it");
}

void check_together(const Node& node, const S& settings, Problems& problems) {
  if (!settings.check_val_every_n_epoch && !settings.val_check_interval.batches) {
    const Node at = node["val_check_interval"].defined() ? node["val_check_interval"]
                                                         : node["check_val_every_n_epoch"];
    problems.add(at,
                 "check_val_every_n_epoch: null counts batches across epochs, so "
                 "val_check_interval must be a number of batches",
                 "set val_check_interval: 1000");
  }
  if (!settings.profiler.is_null()) {
    Catalogue known;
    add_callback_components(known);
    known.check("profiler", settings.profiler, problems);
  }
  for (const char* key : {"precision"}) {
    const Node value = node[key];
    if (value.is_scalar() && (value.raw() == "16" || value.raw() == "bf16"))
      problems.warn(value, "'" + value.raw() + "' is read as '" + value.raw() + "-mixed'",
                    "write precision: " + value.raw() + "-mixed");
  }
  if (settings.accelerator == "cpu" && settings.precision.name == "16-mixed")
    problems.warn(node["precision"],
                  "CPUs have no fast float16; bf16-mixed is used where float16 is missing",
                  "write precision: bf16-mixed");
}

struct DdpOptions {
  bool find_unused_parameters = false;
  double bucket_cap_mb = 25;
};

Schema<DdpOptions> ddp_schema() {
  Schema<DdpOptions> s("ddp",
                       "Every rank holds the model; gradients are summed while backward runs.");
  s.field("find_unused_parameters", &DdpOptions::find_unused_parameters,
          "allow parameters that take no part in a step");
  s.field("bucket_cap_mb", &DdpOptions::bucket_cap_mb, "gradients sent together",
          {.min = 1, .unit = "MiB"});
  for (const char* key : {"gradient_as_bucket_view", "static_graph"})
    s.refused(key, {"true", "True", "false", "False"}, "remove it");
  s.refused("process_group_backend", {"nccl", "gloo"}, "remove it: NCCL on GPUs, Gloo on CPUs");
  s.elsewhere("timeout", "put it under trainer.timeout");
  s.elsewhere("accelerator", "put it under trainer.accelerator");
  return s;
}

struct FsdpOptions {
  std::string sharding_strategy = "full_shard";
  std::vector<std::string> units;
  std::int64_t unit_min_params = 1'000'000;
  bool cpu_offload = false;
  std::string param_precision;
  std::string reduce_precision;
  std::vector<std::string> activation_checkpointing;
  int gathers_in_flight = 2;
};

Schema<FsdpOptions> fsdp_schema() {
  using F = FsdpOptions;
  Schema<F> s("fsdp", "Every rank holds a part of the weights, gradients and optimizer state.");
  s.field("sharding_strategy", &F::sharding_strategy,
          "hybrid_shard: shard in the node, replicate across nodes",
          {.one_of = {"full_shard", "shard_grad_op", "hybrid_shard", "FULL_SHARD", "SHARD_GRAD_OP",
                      "HYBRID_SHARD"}});
  s.field("units", &F::units, "module classes gathered as one; empty: by size");
  s.field("unit_min_params", &F::unit_min_params, "smallest unit when cut by size",
          {.min = 1, .unit = "parameters"});
  s.field("cpu_offload", &F::cpu_offload, "keep shards and optimizer state in host memory");
  s.field("param_precision", &F::param_precision,
          "format of gathered weights; empty: as trainer.precision",
          {.one_of = {"", "32", "16", "bf16"}});
  s.field("reduce_precision", &F::reduce_precision, "format of summed gradients; empty: 32",
          {.one_of = {"", "32", "16", "bf16"}});
  s.field("activation_checkpointing", &F::activation_checkpointing,
          "module classes whose activations are computed again");
  s.field("gathers_in_flight", &F::gathers_in_flight, "gathers ahead of the computation",
          {.min = 1});
  s.refused("limit_all_gathers", {"true", "True"}, "use gathers_in_flight");
  s.refused("auto_wrap_policy", {}, "use units: [class names], or unit_min_params");
  s.refused("activation_checkpointing_policy", {},
            "use activation_checkpointing: [class names], here or under trainer");
  s.elsewhere("timeout", "put it under trainer.timeout");
  s.elsewhere("mixed_precision", "use trainer.precision, param_precision and reduce_precision");
  s.refused("state_dict_type", {"full", "sharded"},
            "remove it: one checkpoint format serves every strategy");
  return s;
}

struct NoOptions {};

StrategySettings from_text(const Node& node, Problems& problems) {
  StrategySettings out;
  const std::string& text = node.raw();
  if (text == "ddp_find_unused_parameters_true") {
    out.name = "ddp";
    out.find_unused_parameters = true;
  } else if (text == "ddp_find_unused_parameters_false") {
    out.name = "ddp";
  } else if (text == "fsdp_cpu_offload") {
    out.name = "fsdp";
    out.cpu_offload = true;
  } else if (text == "auto" || text == "single_device" || text == "ddp" || text == "fsdp") {
    out.name = text;
  } else if (text.starts_with("ddp_spawn") || text.starts_with("ddp_fork") ||
             text.starts_with("ddp_notebook")) {
    problems.add(node, fmt::format("got '{}': ranks are processes of their own here", text),
                 "use strategy: ddp");
  } else if (text.starts_with("deepspeed")) {
    problems.add(node, fmt::format("got '{}', which is not supported", text), "use strategy: fsdp");
  } else {
    const std::vector<std::string> known = {"auto",
                                            "single_device",
                                            "ddp",
                                            "ddp_find_unused_parameters_true",
                                            "ddp_find_unused_parameters_false",
                                            "fsdp",
                                            "fsdp_cpu_offload"};
    const std::string guess = closest_match(text, known);
    problems.add(node, fmt::format("got '{}', expected one of {}", text, join(known, ", ")),
                 guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
  }
  return out;
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

Schema<TrainerSettings> trainer_schema() {
  Schema<S> s("trainer", "Training parallelism: one model, many ranks.");
  add_where_and_how(s);
  add_how_long(s);
  add_updates(s);
  add_output(s);
  add_refused(s);
  s.elsewhere("num_device", "num_device is a top-level key; here it is devices: ${num_device}");
  s.elsewhere("n_workers", "n_workers belongs to parallel: (many items); devices is for training");
  s.elsewhere("env", "env belongs to parallel: (many items); strategy is for training");
  s.elsewhere("gpus", "use accelerator: gpu and devices");
  s.elsewhere("seed", "seed is a top-level key");
  s.elsewhere("resume_from_checkpoint", "use fit: {ckpt_path: last}");
  s.check(check_together);
  return s;
}

StrategySettings parse_strategy(const Node& strategy, Problems& problems) {
  if (strategy.is_null()) return {};
  if (strategy.is_scalar()) return from_text(strategy, problems);
  StrategySettings out;
  if (!strategy.is_map()) {
    problems.add(strategy,
                 "got " + strategy.describe_value() + ", expected a name or a _target_ node");
    return out;
  }
  Catalogue catalogue;
  add_strategy_components(catalogue);
  const Component* component = catalogue.require("strategy", strategy, problems);
  if (!component) return out;
  out.name = component->name;
  if (out.name == "ddp") {
    const DdpOptions options = ddp_schema().parse(strategy, problems);
    out.find_unused_parameters = options.find_unused_parameters;
    out.bucket_cap_mb = options.bucket_cap_mb;
  } else if (out.name == "fsdp") {
    const FsdpOptions options = fsdp_schema().parse(strategy, problems);
    out.sharding_strategy = lower(options.sharding_strategy);
    out.units = options.units;
    out.unit_min_params = options.unit_min_params;
    out.cpu_offload = options.cpu_offload;
    out.param_precision = options.param_precision;
    out.reduce_precision = options.reduce_precision;
    out.activation_checkpointing = options.activation_checkpointing;
    out.gathers_in_flight = options.gathers_in_flight;
  } else {
    component->check(strategy, problems);
  }
  return out;
}

std::vector<Node> logger_nodes(const Node& logger, Problems& problems) {
  if (logger.is_null()) return {Node()};
  if (logger.is_list()) return logger.elements();
  if (logger.is_map()) return {logger};
  bool on = true;
  std::string expected;
  if (!read(logger, on, expected))
    problems.add(logger, "got " + logger.describe_value() +
                             ", expected true, false, a _target_ node or a list of them");
  return on ? std::vector<Node>{Node()} : std::vector<Node>{};
}

void add_strategy_components(Catalogue& catalogue) {
  const std::string strategies = "lightning.pytorch.strategies.";
  catalogue.add(
      "strategy",
      Schema<NoOptions>("auto", "ddp when there is more than one rank, else single_device."));
  catalogue.add("strategy", Schema<NoOptions>("single_device", "One rank."),
                {strategies + "SingleDeviceStrategy"});
  catalogue.add("strategy", ddp_schema(), {strategies + "DDPStrategy"});
  catalogue.add("strategy", fsdp_schema(), {strategies + "FSDPStrategy"});
  catalogue.instead("strategy", strategies + "DeepSpeedStrategy", "use strategy: fsdp");
}

}  // namespace tutti::config
