#include "tutti/trainer/from_config.h"

#include <limits>

#include "tutti/config/factory.h"
#include "tutti/config/schemas/callbacks.h"
#include "tutti/config/schemas/files.h"
#include "tutti/config/schemas/optim.h"
#include "tutti/config/schemas/standard.h"
#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

using config::Catalogue;
using config::Component;
using config::Node;
using config::Problems;
namespace fs = std::filesystem;

Amount to_amount(const config::BatchLimit& limit) {
  return limit.batches ? Amount::count(*limit.batches) : Amount::fraction(limit.part);
}

template <class AdamLike>
void fill_adam(const AdamLike& from, OptimizerOptions& to) {
  to.lr = from.lr;
  if (from.betas.size() == 2) {
    to.beta1 = from.betas[0];
    to.beta2 = from.betas[1];
  }
  to.eps = from.eps;
  to.weight_decay = from.weight_decay;
  to.amsgrad = from.amsgrad;
}

OptimizerOptions read_optimizer(const Catalogue& catalogue, const Node& node, Problems& problems) {
  OptimizerOptions out;
  const Component* component = catalogue.require("optimizer", node, problems);
  if (!component) return out;
  if (component->name == config::adamw_schema().info().name) {
    out.kind = OptimizerKind::kAdamW;
    fill_adam(config::adamw_schema().parse(node, problems), out);
  } else if (component->name == config::sgd_schema().info().name) {
    const auto sgd = config::sgd_schema().parse(node, problems);
    out = {.kind = OptimizerKind::kSgd,
           .lr = sgd.lr,
           .weight_decay = sgd.weight_decay,
           .momentum = sgd.momentum,
           .dampening = sgd.dampening,
           .nesterov = sgd.nesterov};
  } else if (component->name == config::adam_schema().info().name) {
    fill_adam(config::adam_schema().parse(node, problems), out);
  } else {
    problems.add(node, "this trainer has no code for the optimizer '" + component->name + "'");
  }
  return out;
}

ScheduleOptions read_schedule(const Catalogue& catalogue, const Node& node, Problems& problems) {
  ScheduleOptions out;
  if (node.is_null()) return out;
  const Component* component = catalogue.require("scheduler", node, problems);
  if (!component) return out;
  const std::string& name = component->name;
  if (name == config::warmup_lr_schema().info().name) {
    out.kind = ScheduleKind::kWarmup;
    out.warmup_steps = config::warmup_lr_schema().parse(node, problems).warmup_steps;
  } else if (name == config::piecewise_linear_warmup_lr_schema().info().name) {
    const auto s = config::piecewise_linear_warmup_lr_schema().parse(node, problems);
    out.kind = ScheduleKind::kPiecewiseLinear;
    out.warmup_steps_list = s.warmup_steps_list;
    out.warmup_lr_list = s.warmup_lr_list;
  } else if (name == config::noam_lr_schema().info().name) {
    const auto s = config::noam_lr_schema().parse(node, problems);
    out.kind = ScheduleKind::kNoam;
    out.model_size = s.model_size;
    out.warmup_steps = s.warmup_steps;
  } else if (name == config::cosine_warmup_lr_schema().info().name) {
    const auto s = config::cosine_warmup_lr_schema().parse(node, problems);
    out.kind = ScheduleKind::kCosineWarmup;
    out.warmup_steps = s.warmup_steps;
    out.total_steps = s.total_steps;
    out.min_lr = s.min_lr;
  } else if (name == config::plateau_lr_schema().info().name) {
    const auto s = config::plateau_lr_schema().parse(node, problems);
    out.kind = ScheduleKind::kPlateau;
    out.lower_is_better = s.mode != "max";
    out.factor = s.factor;
    out.patience = s.patience;
    out.threshold = s.threshold;
    out.cooldown = s.cooldown;
    out.min_lr = s.min_lr;
  } else if (name != config::constant_lr_schema().info().name) {
    problems.add(node, "this trainer has no code for the scheduler '" + name + "'");
  }
  return out;
}

void read_clipping(const Node& node, OptimizerSpec& spec, Problems& problems) {
  const Node limit = node["gradient_clip_val"], algorithm = node["gradient_clip_algorithm"];
  if (!limit.is_null()) {
    spec.gradient_clip_val = limit.as<double>();
    if (*spec.gradient_clip_val < 0)
      problems.add(limit, "got " + limit.raw() + ", expected 0 (none) or more");
  }
  if (algorithm.is_null()) return;
  if (algorithm.raw() == "value" || algorithm.raw() == "norm")
    spec.gradient_clip_algorithm =
        algorithm.raw() == "value" ? ClipAlgorithm::kValue : ClipAlgorithm::kNorm;
  else
    problems.add(algorithm, "got " + algorithm.describe_value() + ", expected norm or value");
}

// `optimizers: {g: {optimizer: ..., params: generator}}` and `schedulers` of the same names.
std::vector<OptimizerSpec> read_named(const Catalogue& catalogue, const Node& root,
                                      Problems& problems) {
  std::vector<OptimizerSpec> out;
  for (const auto& [name, node] : root["optimizers"].items()) {
    config::check_unknown_keys(
        node, {"optimizer", "params", "gradient_clip_val", "gradient_clip_algorithm"},
        {{"accum_grad_steps", "use trainer.accumulate_grad_batches"},
         {"step_every_n_iters", "let the model return this optimizer's loss in every n-th step"}},
        problems);
    OptimizerSpec spec;
    spec.name = name;
    spec.params = node["params"].value_or<std::string>("");
    spec.options = read_optimizer(catalogue, node["optimizer"], problems);
    read_clipping(node, spec, problems);
    const Node scheduler = root["schedulers"][name];
    if (!scheduler.is_null()) {
      spec.schedule = read_schedule(catalogue, scheduler["scheduler"], problems);
      spec.schedule.by_epoch = scheduler["interval"].value_or<std::string>("epoch") == "epoch";
      spec.schedule.monitor = scheduler["monitor"].value_or<std::string>("valid/loss");
    }
    out.push_back(std::move(spec));
  }
  for (const auto& [name, node] : root["schedulers"].items())
    if (!root["optimizers"][name].defined())
      problems.add(node, "there is no optimizer of this name", "use the names under optimizers");
  return out;
}

fs::path logger_folder(const std::string& save_dir, const std::optional<std::string>& name,
                       const std::optional<std::string>& version) {
  fs::path folder = save_dir;
  if (name && !name->empty()) folder /= *name;
  if (version && !version->empty()) folder /= *version;
  return folder;
}

config::Factory<Logger> logger_factory() {
  config::Factory<Logger> factory("logger");
  factory.add(config::tensorboard_schema(), [](const config::TensorBoardSettings& s) {
    return with_prefix(s.prefix, make_tensorboard_logger(
                                     logger_folder(s.save_dir, s.name, s.version) / s.sub_dir));
  });
  factory.add(config::csv_schema(), [](const config::CsvSettings& s) {
    return with_prefix(s.prefix, make_csv_logger(logger_folder(s.save_dir, s.name, s.version)));
  });
  factory.add(config::jsonl_schema(), [](const config::JsonlSettings& s) {
    return make_jsonl_logger(fs::path(s.save_dir) / s.file);
  });
  return factory;
}

// Null for callbacks whose work the loop does anyway.
std::unique_ptr<Callback> read_callback(const Catalogue& catalogue, const Node& node,
                                        TrainingPlan& plan, Problems& problems) {
  const Component* component = catalogue.check("callback", node, problems);
  if (!component) return nullptr;
  if (component->name == config::early_stopping_schema().info().name) {
    const auto s = config::early_stopping_schema().parse(node, problems);
    return make_early_stopping({.monitor = s.monitor,
                                .better = s.mode == "max" ? Better::kHigher : Better::kLower,
                                .min_delta = s.min_delta,
                                .patience = s.patience,
                                .check_finite = s.check_finite,
                                .stopping_threshold = s.stopping_threshold,
                                .divergence_threshold = s.divergence_threshold});
  }
  if (component->name == config::ema_schema().info().name) {
    const auto s = config::ema_schema().parse(node, problems);
    return make_ema({.decay = s.decay,
                     .every_n_steps = s.update_every_n_steps,
                     .start_step = s.update_starting_at_step});
  }
  if (component->name == config::model_checkpoint_schema().info().name) {
    const auto s = config::model_checkpoint_schema().parse(node, problems);
    if (s.monitor && s.save_top_k != 0)
      plan.criteria.push_back({*s.monitor, s.mode == "max" ? Better::kHigher : Better::kLower,
                               s.save_top_k > 0 ? s.save_top_k : std::numeric_limits<int>::max()});
    if (!s.monitor && s.save_top_k == -1) plan.loop.keep_saves = true;
    if (s.every_n_train_steps) plan.loop.save_every_n_steps = *s.every_n_train_steps;
    if (s.every_n_epochs) plan.loop.keep_every_n_epochs = *s.every_n_epochs;
    if (s.train_time_interval) plan.loop.save_every_seconds = s.train_time_interval->seconds;
    if (!s.dirpath.empty()) plan.loop.checkpoint_folder = s.dirpath;
  }
  if (component->name == config::average_checkpoints_schema().info().name)
    plan.loop.average_best =
        config::average_checkpoints_schema().parse(node, problems).num_checkpoints;
  return nullptr;  // learning rates, throughput and averages are always written
}

LoopSettings loop_settings(const config::TrainerSettings& t, const PlanContext& context) {
  LoopSettings out;
  out.max_epochs = t.max_epochs.value_or(-1);
  out.max_steps = t.max_steps;
  out.max_seconds = t.max_time.seconds;
  out.limit_train_batches = to_amount(t.limit_train_batches);
  out.limit_val_batches = to_amount(t.limit_val_batches);
  out.overfit_batches = to_amount(t.overfit_batches);
  out.val_check_interval = to_amount(t.val_check_interval);
  out.check_val_every_n_epoch = t.check_val_every_n_epoch;
  out.num_sanity_val_steps = t.num_sanity_val_steps;
  out.log_every_n_steps = t.log_every_n_steps;
  out.fast_dev_run = t.fast_dev_run.batches;
  out.accumulate_grad_batches = t.accumulate_grad_batches;
  out.gradient_clip_val = t.gradient_clip_val.value_or(0);
  out.gradient_clip_algorithm =
      t.gradient_clip_algorithm == "value" ? ClipAlgorithm::kValue : ClipAlgorithm::kNorm;
  out.loss_reduction =
      t.loss_average == "mean_of_means" ? LossReduction::kMeanOfMeans : LossReduction::kGlobal;
  out.max_nonfinite_steps = t.max_nonfinite_steps;
  out.precision = parse_precision(t.precision.name);
  out.deterministic = t.deterministic.on || t.deterministic.warn_only;
  out.deterministic_warn_only = t.deterministic.warn_only;
  out.device = context.device;
  out.show_progress = t.enable_progress_bar;
  const fs::path root = t.default_root_dir.empty() ? context.exp_dir : fs::path(t.default_root_dir);
  out.checkpoint_folder = root / "checkpoints";
  return out;
}

at::ScalarType scalar_type(const std::string& name) {
  return name == "16" ? at::kHalf : name == "bf16" ? at::kBFloat16 : at::kFloat;
}

FsdpOptions fsdp_options(const config::StrategySettings& s, const LoopSettings& loop,
                         const Node& node, Problems& problems) {
  FsdpOptions out;
  if (s.sharding_strategy == "shard_grad_op") out.sharding = Sharding::kGradOp;
  if (s.sharding_strategy == "hybrid_shard") out.sharding = Sharding::kHybrid;
  out.units.classes = s.units;
  out.units.min_params = s.unit_min_params;
  out.cpu_offload = s.cpu_offload;
  out.gathers_in_flight = s.gathers_in_flight;
  out.recompute = s.activation_checkpointing;
  // The type matrices are multiplied in, if it is not the weights' own.
  std::string computing;
  const PrecisionMode mode = Precision(loop.precision, at::Device(loop.device)).mode();
  if (mode == PrecisionMode::kBf16Mixed) computing = "bf16";
  if (mode == PrecisionMode::k16Mixed) computing = "16";
  if (s.param_precision.empty() ? !computing.empty() : s.param_precision != "32") {
    if (!s.param_precision.empty() && s.param_precision != computing)
      problems.add(node["param_precision"],
                   "got " + s.param_precision + ", but trainer.precision " +
                       to_string(loop.precision) + " computes in " +
                       (computing.empty() ? "32" : computing),
                   "remove it, or set trainer.precision: " + s.param_precision + "-mixed");
    out.gather_type = scalar_type(computing);
  }
  if (!s.reduce_precision.empty() && s.reduce_precision != "32")
    out.reduce_type = scalar_type(s.reduce_precision);
  return out;
}

}  // namespace

std::string TrainingPlan::strategy_name() const {
  return strategy.name == "ddp" && strategy.find_unused_parameters
             ? "ddp_find_unused_parameters_true"
             : strategy.name;
}

WorldOptions TrainingPlan::world_options(const std::string& device) const {
  return {.device = device, .timeout = trainer.timeout.seconds};
}

std::unique_ptr<Strategy> TrainingPlan::make_strategy(World& world) const {
  return trainer::make_strategy(strategy_name(), world, fsdp, strategy.bucket_cap_mb);
}

std::vector<Callback*> TrainingPlan::callback_pointers() const {
  std::vector<Callback*> out;
  for (const auto& callback : callbacks) out.push_back(callback.get());
  return out;
}

std::vector<Logger*> TrainingPlan::logger_pointers() const {
  std::vector<Logger*> out;
  for (const auto& logger : loggers) out.push_back(logger.get());
  return out;
}

TrainingPlan plan_training(const Node& root, const PlanContext& context) {
  const Catalogue catalogue = config::standard_catalogue();
  Problems problems;
  TrainingPlan plan;
  plan.trainer = config::trainer_schema().parse(root["trainer"], problems);
  plan.strategy = config::parse_strategy(plan.trainer.strategy, problems);
  problems.throw_if_any();  // the rest needs these to be right
  plan.loop = loop_settings(plan.trainer, context);
  plan.loop.seed = root["seed"].value_or<std::uint64_t>(0);
  if (plan.strategy.name == "fsdp")
    plan.fsdp = fsdp_options(plan.strategy, plan.loop, plan.trainer.strategy, problems);
  const std::string resume = root["fit"]["ckpt_path"].value_or<std::string>("last");
  plan.loop.resume = resume == "last" ? "auto" : resume;
  if (resume == "best")
    problems.add(root["fit"]["ckpt_path"],
                 "got best, but only weights are kept of the best: training goes on from the last",
                 "remove it, or name a folder: exp/.../checkpoints/step-00001200");

  if (root["optimizers"].is_map()) {
    if (!root["optimizer"].is_null())
      problems.add(root["optimizer"], "both optimizer and optimizers are given",
                   "keep one of them");
    plan.optimizers = read_named(catalogue, root, problems);
  } else {
    OptimizerSpec spec;
    spec.options = read_optimizer(catalogue, root["optimizer"], problems);
    spec.schedule = read_schedule(catalogue, root["scheduler"], problems);
    spec.schedule.by_epoch = root["scheduler_interval"].value_or<std::string>("step") == "epoch";
    spec.schedule.monitor = root["scheduler_monitor"].value_or<std::string>("valid/loss");
    plan.optimizers.push_back(std::move(spec));
  }
  for (const auto& c : config::parse_best_model_criterion(root["best_model_criterion"], problems))
    plan.criteria.push_back(
        {c.metric, c.lower_is_better ? Better::kLower : Better::kHigher, c.keep});
  for (const Node& node : plan.trainer.callbacks.elements())
    if (auto callback = read_callback(catalogue, node, plan, problems))
      plan.callbacks.push_back(std::move(callback));
  const auto logger_list = config::logger_nodes(plan.trainer.logger, problems);
  for (const Node& node : logger_list)
    if (node.defined()) catalogue.check("logger", node, problems);
  problems.throw_if_any();

  if (context.rank == 0 && plan.loop.fast_dev_run == 0) {
    const auto factory = logger_factory();
    for (const Node& node : logger_list)
      plan.loggers.push_back(node.defined()
                                 ? factory.make(catalogue, node)
                                 : make_tensorboard_logger(context.exp_dir / "tensorboard"));
    // Always there: the report reads it.
    plan.loggers.push_back(make_jsonl_logger(context.exp_dir / "metrics.jsonl"));
  }
  return plan;
}

}  // namespace tutti::trainer
