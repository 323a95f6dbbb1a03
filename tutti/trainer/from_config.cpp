#include "tutti/trainer/from_config.h"

#include <algorithm>
#include <limits>

#include "tutti/config/schemas/callbacks.h"
#include "tutti/config/schemas/files.h"
#include "tutti/config/schemas/standard.h"
#include "tutti/core/error.h"
#include "tutti/trainer/registry.h"

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

// A component whose code this program has; null with a problem otherwise.
template <class Registry>
const Component* require_code(const Catalogue& catalogue, const Registry& registry,
                              const Node& node, Problems& problems) {
  const Component* component = catalogue.check(registry.group(), node, problems);
  if (component && !registry.has(component->name)) {
    problems.add(node, "this program has no code for the " + registry.group() + " '" +
                           component->name + "'");
    return nullptr;
  }
  return component;
}

MakeOptimizer read_optimizer(const Catalogue& catalogue, const Node& node, Problems& problems) {
  require_code(catalogue, optimizer_registry(), node, problems);
  return [catalogue, node](NamedTensors parameters) {
    return optimizer_registry().make(catalogue, node, std::move(parameters));
  };
}

// The optimizer's node with the keys of a group over its own.
Node overlaid(const Node& optimizer, const Node& group) {
  auto value = std::make_shared<config::Value>();
  if (optimizer.is_map()) {
    *value = *optimizer.value();
  } else {  // `optimizer: adam`
    value->kind = config::Kind::kMap;
    value->map.emplace_back("_target_", optimizer.value());
  }
  for (const auto& [key, child] : group.items()) {
    if (key == "match" || key == "dims") continue;
    const auto found = std::find_if(value->map.begin(), value->map.end(),
                                    [&](const auto& entry) { return entry.first == key; });
    if (found != value->map.end()) {
      found->second = child.value();
      continue;
    }
    value->map.emplace_back(key, child.value());
    if (!value->key_marks.empty()) value->key_marks.push_back(group.key_mark(key));
  }
  return Node(value, group.path());
}

// `param_groups: [{match: ["*.bias", norm], dims: 1, weight_decay: 0}, {match: encoder, lr: 1e-4}]`
std::vector<GroupSpec> read_groups(const Catalogue& catalogue, const Node& optimizer,
                                   const Node& list, Problems& problems) {
  std::vector<GroupSpec> out;
  if (list.is_null()) return out;
  if (!list.is_list()) {
    problems.add(list, "got " + list.describe_value() + ", expected a list",
                 "write param_groups: [{match: [bias], weight_decay: 0}]");
    return out;
  }
  for (const Node& entry : list.elements()) {
    GroupSpec group;
    const Node match = entry["match"];
    if (match.is_list())
      group.match = match.as<std::vector<std::string>>();
    else if (!match.is_null())
      group.match = {match.as<std::string>()};
    if (!entry["dims"].is_null()) group.dims = entry["dims"].as<std::int64_t>();
    if (group.match.empty() && !group.dims)
      problems.add(entry, "this group does not say which parameters it takes",
                   "add match: [pattern, ...] or dims: 1");
    group.make = read_optimizer(catalogue, overlaid(optimizer, entry), problems);
    out.push_back(std::move(group));
  }
  return out;
}

MakeSchedule read_schedule(const Catalogue& catalogue, const Node& node, Problems& problems) {
  if (node.is_null()) return {};
  const config::Schema<config::SequentialLrSettings> sequence = config::sequential_lr_schema();
  const Component* component = catalogue.find(
      "scheduler", node["_target_"].is_scalar() ? node["_target_"].raw() : std::string());
  if (component && component->name == sequence.info().name) {
    const auto settings = sequence.parse(node, problems);
    std::vector<MakeSchedule> parts;
    if (settings.schedulers.is_list())
      for (const Node& part : settings.schedulers.elements())
        parts.push_back(read_schedule(catalogue, part, problems));
    return [parts, milestones = settings.milestones](double base_lr) {
      std::vector<std::unique_ptr<Schedule>> schedules;
      for (const MakeSchedule& make : parts) schedules.push_back(make(base_lr));
      return make_sequence(std::move(schedules), milestones);
    };
  }
  require_code(catalogue, schedule_registry(), node, problems);
  return [catalogue, node](double base_lr) {
    return schedule_registry().make(catalogue, node, base_lr);
  };
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
        node,
        {"optimizer", "params", "param_groups", "gradient_clip_val", "gradient_clip_algorithm"},
        {{"accum_grad_steps", "use trainer.accumulate_grad_batches"},
         {"step_every_n_iters", "let the model return this optimizer's loss in every n-th step"}},
        problems);
    OptimizerSpec spec;
    spec.name = name;
    spec.params = node["params"].value_or<std::string>("");
    spec.make = read_optimizer(catalogue, node["optimizer"], problems);
    spec.groups = read_groups(catalogue, node["optimizer"], node["param_groups"], problems);
    read_clipping(node, spec, problems);
    const Node scheduler = root["schedulers"][name];
    if (!scheduler.is_null()) {
      spec.schedule.make = read_schedule(catalogue, scheduler["scheduler"], problems);
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

void read_swa(const config::SwaSettings& s, const Node& node, TrainingPlan& plan,
              Problems& problems) {
  const bool part = !s.swa_epoch_start.batches;
  if (part && plan.loop.max_epochs < 0)
    problems.add(node["swa_epoch_start"], "a part of the epochs needs trainer.max_epochs",
                 "set max_epochs, or give swa_epoch_start: EPOCH");
  const std::int64_t start =
      part ? static_cast<std::int64_t>(s.swa_epoch_start.part *
                                       static_cast<double>(plan.loop.max_epochs))
           : *s.swa_epoch_start.batches;
  const std::int64_t first = std::max<std::int64_t>(0, start - 1);
  plan.loop.last_phase = {.first_epoch = first,
                          .lr = s.swa_lrs,
                          .annealing_epochs = s.annealing_epochs,
                          .cosine = s.annealing_strategy == "cos"};
  plan.callbacks.push_back(make_swa(first));
}

// Callbacks that set the loop's own numbers. False: it is another one.
bool read_loop_callback(const Component& component, const Node& node, TrainingPlan& plan,
                        Problems& problems) {
  const std::string& name = component.name;
  if (name == config::model_checkpoint_schema().info().name) {
    if (!plan.trainer.enable_checkpointing)
      problems.add(node, "trainer.enable_checkpointing is false", "remove one of the two");
    const auto s = config::model_checkpoint_schema().parse(node, problems);
    if (s.monitor && s.save_top_k != 0)
      plan.criteria.push_back({*s.monitor, s.mode == "max" ? Better::kHigher : Better::kLower,
                               s.save_top_k > 0 ? s.save_top_k : std::numeric_limits<int>::max(),
                               s.every_n_epochs.value_or(1)});
    if (!s.monitor && s.save_top_k == -1) plan.loop.keep_saves = true;
    if (s.every_n_train_steps) plan.loop.save_every_n_steps = *s.every_n_train_steps;
    if (s.every_n_epochs) plan.loop.keep_every_n_epochs = *s.every_n_epochs;
    if (s.train_time_interval) plan.loop.save_every_seconds = s.train_time_interval->seconds;
    if (!s.dirpath.empty()) plan.loop.checkpoint_folder = s.dirpath;
    return true;
  }
  if (name == config::average_checkpoints_schema().info().name) {
    plan.loop.average_best =
        config::average_checkpoints_schema().parse(node, problems).num_checkpoints;
    return true;
  }
  if (name == config::timer_schema().info().name) {
    const auto limit = config::timer_schema().parse(node, problems).duration.seconds;
    if (limit) plan.loop.max_seconds = std::min(*limit, plan.loop.max_seconds.value_or(*limit));
    return true;
  }
  if (name == config::accumulation_schema().info().name) {
    const auto s = config::accumulation_schema().parse(node, problems);
    if (!(plan.loop.accumulation == std::map<std::int64_t, int>{{0, 1}}))
      problems.add(node, "trainer.accumulate_grad_batches says the same", "keep one of them");
    plan.loop.accumulation = s.scheduling.from_epoch;
    return true;
  }
  if (name == config::swa_schema().info().name) {
    read_swa(config::swa_schema().parse(node, problems), node, plan, problems);
    return true;
  }
  // Learning rates and throughput are always written.
  return name == config::learning_rate_monitor_schema().info().name ||
         name == config::throughput_schema().info().name;
}

void read_callback(const Catalogue& catalogue, const Node& node, TrainingPlan& plan,
                   Problems& problems) {
  const Component* component = catalogue.check("callback", node, problems);
  if (!component || !problems.empty() || read_loop_callback(*component, node, plan, problems))
    return;
  if (require_code(catalogue, callback_registry(), node, problems))
    plan.callbacks.push_back(callback_registry().make(catalogue, node));
}

void read_profiler(const Catalogue& catalogue, const PlanContext& context, TrainingPlan& plan,
                   Problems& problems) {
  const Node& node = plan.trainer.profiler;
  if (node.is_null() || !catalogue.check("profiler", node, problems)) return;
  const auto s =
      node.is_map() ? config::profiler_schema().parse(node, problems) : config::ProfilerSettings{};
  const fs::path folder = s.dirpath.empty() ? context.exp_dir : fs::path(s.dirpath);
  plan.callbacks.push_back(make_chrome_trace(
      {.file = folder / (s.filename + "-rank" + std::to_string(context.rank) + ".json"),
       .first_step = s.first_step,
       .num_steps = s.num_steps}));
}

LoopSettings loop_settings(const config::TrainerSettings& t, const PlanContext& context) {
  LoopSettings out;
  out.max_epochs = t.max_epochs.value_or(-1);
  out.max_steps = t.max_steps;
  out.min_epochs = t.min_epochs;
  out.min_steps = t.min_steps;
  out.max_seconds = t.max_time.seconds;
  out.limit_train_batches = to_amount(t.limit_train_batches);
  out.limit_val_batches = to_amount(t.limit_val_batches);
  out.overfit_batches = to_amount(t.overfit_batches);
  out.val_check_interval = to_amount(t.val_check_interval);
  out.check_val_every_n_epoch = t.check_val_every_n_epoch;
  out.num_sanity_val_steps = t.num_sanity_val_steps;
  out.log_every_n_steps = t.log_every_n_steps;
  out.fast_dev_run = t.fast_dev_run.batches;
  out.accumulation = t.accumulate_grad_batches.from_epoch;
  out.accumulate_grad_batches = out.accumulation.begin()->second;
  out.gradient_clip_val = t.gradient_clip_val.value_or(0);
  out.gradient_clip_algorithm =
      t.gradient_clip_algorithm == "value" ? ClipAlgorithm::kValue : ClipAlgorithm::kNorm;
  out.loss_reduction =
      t.loss_average == "mean_of_means" ? LossReduction::kMeanOfMeans : LossReduction::kGlobal;
  out.max_nonfinite_steps = t.max_nonfinite_steps;
  out.precision = parse_precision(t.precision.name);
  out.deterministic = t.deterministic.on || t.deterministic.warn_only;
  out.deterministic_warn_only = t.deterministic.warn_only;
  out.detect_anomaly = t.detect_anomaly;
  out.sync_batchnorm = t.sync_batchnorm;
  out.recompute = t.activation_checkpointing;
  out.device = context.device;
  out.show_progress = t.enable_progress_bar;
  out.show_model = t.enable_model_summary;
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
  return trainer::make_strategy(strategy_name(), world, fsdp, strategy.bucket_cap_mb,
                                trainer.sync_batchnorm);
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
  const Catalogue catalogue = context.catalogue ? *context.catalogue : config::standard_catalogue();
  Problems problems;
  TrainingPlan plan;
  plan.trainer = config::trainer_schema().parse(root["trainer"], problems);
  plan.strategy = config::parse_strategy(plan.trainer.strategy, problems);
  problems.throw_if_any();  // the rest needs these to be right
  plan.loop = loop_settings(plan.trainer, context);
  for (const std::string& name : plan.strategy.activation_checkpointing)
    if (std::find(plan.loop.recompute.begin(), plan.loop.recompute.end(), name) ==
        plan.loop.recompute.end())
      plan.loop.recompute.push_back(name);
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
    spec.make = read_optimizer(catalogue, root["optimizer"], problems);
    spec.groups = read_groups(catalogue, root["optimizer"], root["param_groups"], problems);
    spec.schedule.make = read_schedule(catalogue, root["scheduler"], problems);
    spec.schedule.by_epoch = root["scheduler_interval"].value_or<std::string>("step") == "epoch";
    spec.schedule.monitor = root["scheduler_monitor"].value_or<std::string>("valid/loss");
    plan.optimizers.push_back(std::move(spec));
  }
  for (const auto& c : config::parse_best_model_criterion(root["best_model_criterion"], problems))
    plan.criteria.push_back(
        {c.metric, c.lower_is_better ? Better::kLower : Better::kHigher, c.keep});
  for (const Node& node : plan.trainer.callbacks.elements())
    read_callback(catalogue, node, plan, problems);
  if (!plan.trainer.enable_checkpointing) plan.loop.checkpoint_folder.clear();
  read_profiler(catalogue, context, plan, problems);
  const auto logger_list = config::logger_nodes(plan.trainer.logger, problems);
  for (const Node& node : logger_list)
    if (node.defined()) require_code(catalogue, logger_registry(), node, problems);
  problems.throw_if_any();

  if (context.rank == 0 && plan.loop.fast_dev_run == 0) {
    for (const Node& node : logger_list)
      plan.loggers.push_back(
          node.defined() ? logger_registry().make(catalogue, node, LoggerContext{context.exp_dir})
                         : make_tensorboard_logger(context.exp_dir / "tensorboard"));
    // Always there: the report reads it.
    plan.loggers.push_back(make_jsonl_logger(context.exp_dir / "metrics.jsonl"));
  }
  return plan;
}

}  // namespace tutti::trainer
