#include "tutti/trainer/trainer_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "tutti/config/schemas/callbacks.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/callback_settings.h"

namespace tutti::trainer {
namespace {

const std::vector<std::pair<std::string, ClipAlgorithm>>& clip_algorithms() {
  static const std::vector<std::pair<std::string, ClipAlgorithm>> names = {
      {"norm", ClipAlgorithm::kNorm}, {"value", ClipAlgorithm::kValue}};
  return names;
}

const std::vector<std::pair<std::string, LossReduction>>& loss_averages() {
  static const std::vector<std::pair<std::string, LossReduction>> names = {
      {"global", LossReduction::kGlobal}, {"mean_of_means", LossReduction::kMeanOfMeans}};
  return names;
}

// The first spelling of each is the one that is shown.
const std::vector<std::pair<std::string, PrecisionMode>>& precisions() {
  static const std::vector<std::pair<std::string, PrecisionMode>> names = {
      {"32-true", PrecisionMode::k32},
      {"32", PrecisionMode::k32},
      {"16-mixed", PrecisionMode::k16Mixed},
      {"16", PrecisionMode::k16Mixed},
      {"bf16-mixed", PrecisionMode::kBf16Mixed},
      {"bf16", PrecisionMode::kBf16Mixed},
      {"bf16-true", PrecisionMode::kBf16True},
      {"64-true", PrecisionMode::k64},
      {"64", PrecisionMode::k64}};
  return names;
}

template <class T>
bool read_name(const config::Node& node, const std::vector<std::pair<std::string, T>>& names,
               T& out, std::string& expected) {
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (std::none_of(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](const auto& other) { return other.second == names[i].second; }))
      shown.push_back(names[i].first);
  expected = "one of " + join(shown, ", ");
  if (!node.is_scalar()) return false;
  for (const auto& [name, value] : names)
    if (node.raw() == name) return out = value, true;
  return false;
}

template <class T>
std::string name_of(const std::vector<std::pair<std::string, T>>& names, T value) {
  for (const auto& [name, each] : names)
    if (each == value) return name;
  return {};
}

}  // namespace

// How the schema reads, names and shows them.
bool read(const config::Node& node, ClipAlgorithm& out, std::string& expected) {
  return read_name(node, clip_algorithms(), out, expected);
}
bool read(const config::Node& node, LossReduction& out, std::string& expected) {
  return read_name(node, loss_averages(), out, expected);
}
bool read(const config::Node& node, PrecisionMode& out, std::string& expected) {
  return read_name(node, precisions(), out, expected);
}

}  // namespace tutti::trainer

namespace tutti::config {
template <>
std::string type_name<trainer::ClipAlgorithm>() {
  return "text";
}
template <>
std::string type_name<trainer::LossReduction>() {
  return "text";
}
template <>
std::string type_name<trainer::PrecisionMode>() {
  return "32-true, 16-mixed, bf16-mixed, bf16-true or 64-true";
}
template <>
std::string default_as_yaml(const trainer::ClipAlgorithm& value) {
  return trainer::name_of(trainer::clip_algorithms(), value);
}
template <>
std::string default_as_yaml(const trainer::LossReduction& value) {
  return trainer::name_of(trainer::loss_averages(), value);
}
template <>
std::string default_as_yaml(const trainer::PrecisionMode& value) {
  return trainer::name_of(trainer::precisions(), value);
}
}  // namespace tutti::config

namespace tutti::trainer {
namespace {

using config::Catalogue;
using config::Component;
using config::Node;
using config::Problems;
using config::Schema;
using S = LoopSettings;

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
  s.field("float32_matmul_precision", &S::float32_matmul_precision,
          "of matrix products of float32 numbers on a GPU, as torch.set_float32_matmul_precision: "
          "highest computes in float32, high and medium may round factors to TF32 (10 bits)",
          {.one_of = {"highest", "high", "medium"}});
  s.field("cuda_graphs", &S::cuda_graphs,
          "on a GPU, launch a step from features to gradients as one, for batches so small that "
          "launching takes longer than computing; auto: where that is possible",
          {.one_of = {"auto", "false"}});
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
  s.field("gradient_clip_val", &S::gradient_clip_val, "limit of the gradient; 0: none", {.min = 0});
  s.field("gradient_clip_algorithm", &S::gradient_clip_algorithm,
          "norm: of all ranks' gradients together; value: each element",
          {.one_of = {"norm", "value"}});
  s.field("loss_average", &S::loss_reduction,
          "global: over the true weight of all ranks; mean_of_means: as Lightning does",
          {.one_of = {"global", "mean_of_means"}});
  s.field("max_nonfinite_steps", &S::max_nonfinite_steps,
          "steps in a row that are dropped because a loss or gradient is NaN or infinite; then it "
          "is an error",
          {.min = 1, .unit = "updates"});
  s.field("sync_batchnorm", &S::sync_batchnorm,
          "batch norm (of conformers) counts the frames of all ranks");
  s.field("activation_checkpointing", &S::recompute,
          "module classes computed again in the backward pass instead of kept: less memory, a "
          "third more time");
}

void add_output(Schema<S>& s) {
  s.field("log_every_n_steps", &S::log_every_n_steps, "updates between log lines; 0: none",
          {.min = 0, .unit = "updates"});
  s.field("enable_progress_bar", &S::show_progress, "a line that shows how far it is");
  s.field("enable_model_summary", &S::show_model, "the model's parts and their sizes at the start");
  s.field("logger", &S::logger,
          "one _target_ node or a list of them; true: TensorBoard; false: none");
  s.field("callbacks", &S::callbacks, "a list of _target_ nodes");
  s.field("profiler", &S::profiler,
          "pytorch: a Chrome trace of some steps per rank; or a _target_ node");
  s.field("enable_checkpointing", &S::enable_checkpointing,
          "false: nothing is saved, and nothing can be resumed");
  s.field("default_root_dir", &S::default_root_dir,
          "checkpoints go to its folder checkpoints; empty: exp_dir");
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

// What belongs to another place, and arguments of older versions of Lightning.
void add_elsewhere(Schema<S>& s) {
  s.elsewhere("num_device", "num_device is a top-level key; here it is devices: ${num_device}");
  s.elsewhere("n_workers", "n_workers belongs to parallel: (many items); devices is for training");
  s.elsewhere("env", "env belongs to parallel: (many items); strategy is for training");
  s.elsewhere("gpus", "use accelerator: gpu and devices");
  s.elsewhere("num_processes", "use accelerator: cpu and devices");
  for (const char* key : {"seed", "seed_everything"})
    s.elsewhere(key, "seed is a top-level key: seed: 1234");
  s.elsewhere("resume_from_checkpoint", "use fit: {ckpt_path: last}");
  s.elsewhere("terminate_on_nan",
              "remove it: steps with NaN are dropped, and max_nonfinite_steps in a row end the "
              "training; detect_anomaly: true names the operation");
  s.elsewhere("track_grad_norm", "remove it: train/grad_norm is always logged");
  s.elsewhere("auto_lr_find", "remove it: nothing is searched for; set optimizer.lr");
  s.elsewhere("auto_scale_batch_size",
              "remove it: nothing is searched for; set batch_size or batch_bins under dataloader");
  s.elsewhere("replace_sampler_ddp", "remove it: batches are always split over the ranks");
  s.elsewhere("progress_bar_refresh_rate", "use enable_progress_bar: false to have none");
  s.elsewhere("checkpoint_callback", "use enable_checkpointing: false to have none");
  s.elsewhere("weights_summary", "use enable_model_summary: false to have none");
}

using Complain =
    std::function<void(const char* key, const std::string& what, const std::string& fix)>;

// What a block and settings made by a program must both keep.
void check_amounts(const S& s, const Complain& complain) {
  for (const auto& [epoch, batches] : s.accumulate_grad_batches.from_epoch)
    if (batches < 1)
      complain("accumulate_grad_batches", fmt::format("got {}, expected at least 1", batches), "");
  const std::pair<const char*, const Amount*> amounts[] = {
      {"limit_train_batches", &s.limit_train_batches},
      {"limit_val_batches", &s.limit_val_batches},
      {"val_check_interval", &s.val_check_interval},
      {"overfit_batches", &s.overfit_batches}};
  for (const auto& [key, amount] : amounts)
    if (amount->value < 0 || (amount->is_fraction && amount->value > 1))
      complain(key,
               fmt::format("got {}, expected a fraction in [0, 1] or a number of batches",
                           amount->value),
               "");
  if (s.limit_train_batches.value == 0 && s.fast_dev_run.batches == 0 &&
      s.overfit_batches.value == 0)
    complain("limit_train_batches", "got 0, so nothing would be trained",
             "leave it out, or give a number of batches (1) or a fraction (0.1) of the epoch");
  if (s.val_check_interval.value == 0)
    complain("val_check_interval", "got 0, expected more",
             "set limit_val_batches: 0 to turn validation off");
  if (!s.check_val_every_n_epoch && s.val_check_interval.is_fraction)
    complain("val_check_interval",
             "check_val_every_n_epoch: null counts batches across epochs, so val_check_interval "
             "must be a number of batches",
             "set val_check_interval: 1000");
}

void check_together(const Node& node, const S& settings, Problems& problems) {
  check_amounts(settings, [&](const char* key, const std::string& what, const std::string& fix) {
    const Node at = node[key].defined() || !node["check_val_every_n_epoch"].defined()
                        ? node[key]
                        : node["check_val_every_n_epoch"];
    problems.add(at, what, fix);
  });
  if (!settings.profiler.is_null()) {
    Catalogue known;
    config::add_callback_components(known);
    known.check("profiler", settings.profiler, problems);
  }
  const auto check_least = [&](const char* key, std::int64_t least, const char* most_key,
                               std::int64_t most) {
    if (most >= 0 && least > most)
      problems.warn(node[key],
                    fmt::format("got {}, but {} {} ends training", least, most_key, most),
                    fmt::format("give at most {}, or raise {}", most, most_key));
  };
  check_least("min_epochs", settings.min_epochs, "max_epochs", settings.max_epochs);
  check_least("min_steps", settings.min_steps, "max_steps", settings.max_steps);
  const Node precision = node["precision"];
  if (precision.is_scalar() && (precision.raw() == "16" || precision.raw() == "bf16"))
    problems.warn(precision, "'" + precision.raw() + "' is read as '" + precision.raw() + "-mixed'",
                  "write precision: " + precision.raw() + "-mixed");
  if (settings.accelerator == "cpu" && settings.precision == PrecisionMode::k16Mixed)
    problems.warn(precision,
                  "CPUs have no fast float16; bf16-mixed is used where float16 is missing",
                  "write precision: bf16-mixed");
}

Schema<StrategySettings> ddp_schema() {
  Schema<StrategySettings> s(
      "ddp", "Every rank holds the model; gradients are summed while backward runs.");
  s.field("find_unused_parameters", &StrategySettings::find_unused_parameters,
          "allow parameters that take no part in a step");
  s.field("bucket_cap_mb", &StrategySettings::bucket_cap_mb, "gradients sent together",
          {.min = 1, .unit = "MiB"});
  for (const char* key : {"gradient_as_bucket_view", "static_graph"})
    s.refused(key, {"true", "True", "false", "False"}, "remove it");
  s.refused("process_group_backend", {"nccl", "gloo"}, "remove it: NCCL on GPUs, Gloo on CPUs");
  s.elsewhere("timeout", "put it under trainer.timeout");
  s.elsewhere("accelerator", "put it under trainer.accelerator");
  return s;
}

Schema<StrategySettings> fsdp_schema() {
  using F = StrategySettings;
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

Schema<LoopSettings> trainer_schema() {
  Schema<S> s("trainer", "Training parallelism: one model, many ranks.");
  add_where_and_how(s);
  add_how_long(s);
  add_updates(s);
  add_output(s);
  add_refused(s);
  add_elsewhere(s);
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
  if (component->name == "ddp")
    out = ddp_schema().parse(strategy, problems);
  else if (component->name == "fsdp")
    out = fsdp_schema().parse(strategy, problems);
  else
    component->check(strategy, problems);
  out.name = component->name;
  out.sharding_strategy = lower(out.sharding_strategy);
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

void check_trainer_block(const Node& block, const Catalogue& catalogue, Problems& problems) {
  const LoopSettings settings = trainer_schema().parse(block, problems);
  const std::string strategy = parse_strategy(settings.strategy, problems).name;
  if (const auto devices = settings.devices.number().value_or(1);
      strategy == "single_device" && devices > 1)
    problems.add(settings.strategy, fmt::format("got {}, but devices is {}", strategy, devices),
                 "use strategy: ddp, or devices: 1");
  for (const Node& logger : logger_nodes(settings.logger, problems))
    if (logger.defined()) catalogue.check("logger", logger, problems);
  if (settings.callbacks.is_null()) return;
  if (!settings.callbacks.is_list()) {
    problems.add(settings.callbacks, "got " + settings.callbacks.describe_value() +
                                         ", expected a list of _target_ nodes");
    return;
  }
  for (const Node& callback : settings.callbacks.elements())
    if (const Component* component = catalogue.check("callback", callback, problems))
      check_callback(*component, callback, settings, problems);
  check_averages(settings.callbacks, catalogue, problems);
}

PrecisionMode parse_precision(const std::string& text) {
  for (const auto& [name, mode] : precisions())
    if (name == text) return mode;
  throw ConfigError(
      fmt::format("trainer.precision: got '{}', expected 32, 16-mixed, bf16-mixed, "
                  "bf16-true or 64-true",
                  text));
}

std::string to_string(PrecisionMode mode) {
  return mode == PrecisionMode::k32 ? "32" : name_of(precisions(), mode);
}

LoopSettings validated(LoopSettings s) {
  check_amounts(s, [](const char* key, const std::string& what, const std::string& fix) {
    throw ConfigError(fmt::format("trainer.{}: {}", key, what), fix);
  });
  if (const int batches = s.fast_dev_run.batches; batches > 0) {
    s.limit_train_batches = s.limit_val_batches = Amount::count(batches);
    s.val_check_interval = Amount::fraction(1);
    s.max_steps = batches;
    s.max_epochs = 1;
    s.num_sanity_val_steps = 0;
    s.log_every_n_steps = 1;
    s.checkpoint_folder.clear();
  }
  if (s.overfit_batches.value > 0) s.limit_train_batches = s.limit_val_batches = s.overfit_batches;
  if (s.max_epochs < 0 && s.max_steps < 0 && !s.max_time.seconds) {
    log::warning("neither max_epochs, max_steps nor max_time is set: training 1000 epochs");
    s.max_epochs = 1000;
  }
  return s;
}

}  // namespace tutti::trainer
