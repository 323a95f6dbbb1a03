#include "tutti/trainer/from_config.h"

#include <algorithm>
#include <limits>

#include "tutti/config/schemas/callbacks.h"
#include "tutti/config/schemas/files.h"
#include "tutti/config/schemas/standard.h"
#include "tutti/core/error.h"
#include "tutti/core/users_code.h"
#include "tutti/trainer/callback_settings.h"
#include "tutti/trainer/callbacks/users_parts.h"
#include "tutti/trainer/loggers/folders.h"
#include "tutti/trainer/optim/optimizer_settings.h"
#include "tutti/trainer/precision.h"
#include "tutti/trainer/registry.h"

namespace tutti::trainer {
namespace {

using config::Catalogue;
using config::Component;
using config::Node;
using config::Problems;
namespace fs = std::filesystem;

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

// What the code of a plugin throws, now or later, is told with its name.
template <class Registry, class... Args>
auto make_part(const Catalogue& catalogue, const Registry& registry, const Node& node,
               const Args&... args) {
  static const Catalogue ours = config::standard_catalogue();
  Problems problems;
  const Component* component = catalogue.require(registry.group(), node, problems);
  problems.throw_if_any();
  if (ours.find(registry.group(), component->name)) return registry.make(catalogue, node, args...);
  const std::string who = registry.group() + " " + component->name;
  return guarded(who, users_code(who, [&] { return registry.make(catalogue, node, args...); }));
}

MakeOptimizer optimizer_maker(const Catalogue& catalogue, const Node& node, Problems& problems) {
  require_code(catalogue, optimizer_registry(), node, problems);
  return [catalogue, node](NamedTensors parameters) {
    return optimizer_registry().make(catalogue, node, std::move(parameters));
  };
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

OptimizerSpec optimizer_spec(const OptimizerSettings& s, const Catalogue& catalogue,
                             Problems& problems) {
  OptimizerSpec spec;
  spec.name = s.name;
  spec.params = s.params;
  spec.make = optimizer_maker(catalogue, s.optimizer, problems);
  for (const GroupSettings& group : s.groups)
    spec.groups.push_back(
        {group.match, group.dims, optimizer_maker(catalogue, group.optimizer, problems)});
  spec.gradient_clip_val = s.gradient_clip_val;
  spec.gradient_clip_algorithm = s.gradient_clip_algorithm;
  spec.schedule.make = read_schedule(catalogue, s.scheduler, problems);
  spec.schedule.by_epoch = s.by_epoch;
  spec.schedule.monitor = s.monitor;
  return spec;
}

void read_swa(const config::SwaSettings& s, TrainingPlan& plan) {
  const bool part = s.swa_epoch_start.is_fraction;
  const double start =
      s.swa_epoch_start.value * (part ? static_cast<double>(plan.loop.max_epochs) : 1.0);
  const std::int64_t first = std::max<std::int64_t>(0, static_cast<std::int64_t>(start) - 1);
  plan.loop.last_phase = {.first_epoch = first,
                          .lr = s.swa_lrs,
                          .annealing_epochs = s.annealing_epochs,
                          .cosine = s.annealing_strategy == "cos"};
  plan.callbacks.push_back(make_swa(first));
}

KeptSaves kept_saves(const config::ModelCheckpointSettings& s) {
  const bool at_steps = s.every_n_train_steps || s.train_time_interval;
  return {.every_n_epochs = s.every_n_epochs.value_or(at_steps ? 0 : 1),
          .every_n_steps = s.every_n_train_steps.value_or(0),
          .timed = s.train_time_interval.has_value(),
          .validated = !at_steps && !s.every_n_epochs};
}

// Callbacks that set the loop's own numbers. False: it is another one.
bool read_loop_callback(const Component& component, const Node& node, TrainingPlan& plan,
                        Problems& problems) {
  const std::string& name = component.name;
  check_callback(component, node, plan.loop, problems);
  if (name == config::model_checkpoint_schema().info().name) {
    const auto s = config::model_checkpoint_schema().parse(node, problems);
    if (s.monitor && s.save_top_k != 0)
      plan.criteria.push_back({*s.monitor, s.mode == "max" ? Better::kHigher : Better::kLower,
                               s.save_top_k > 0 ? s.save_top_k : std::numeric_limits<int>::max(),
                               s.every_n_epochs.value_or(1)});
    const bool keeps_all = !s.monitor && s.save_top_k == -1;
    if (keeps_all) plan.loop.kept_saves.push_back(kept_saves(s));
    if (s.every_n_train_steps && !keeps_all) plan.loop.save_every_n_steps = *s.every_n_train_steps;
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
    auto& seconds = plan.loop.max_time.seconds;
    if (limit) seconds = std::min(*limit, seconds.value_or(*limit));
    return true;
  }
  if (name == config::accumulation_schema().info().name) {
    const auto s = config::accumulation_schema().parse(node, problems);
    plan.loop.accumulate_grad_batches = s.scheduling;
    return true;
  }
  if (name == config::swa_schema().info().name) {
    read_swa(config::swa_schema().parse(node, problems), plan);
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
    plan.callbacks.push_back(make_part(catalogue, callback_registry(), node));
}

void read_profiler(const Catalogue& catalogue, const PlanContext& context, TrainingPlan& plan,
                   Problems& problems) {
  const Node& node = plan.loop.profiler;
  if (node.is_null() || !catalogue.check("profiler", node, problems)) return;
  const auto s =
      node.is_map() ? config::profiler_schema().parse(node, problems) : config::ProfilerSettings{};
  const fs::path folder = s.dirpath.empty() ? context.exp_dir : fs::path(s.dirpath);
  plan.callbacks.push_back(make_chrome_trace(
      {.file = folder / (s.filename + "-rank" + std::to_string(context.rank) + ".json"),
       .first_step = s.first_step,
       .num_steps = s.num_steps}));
}

at::ScalarType scalar_type(const std::string& name) {
  return name == "16" ? at::kHalf : name == "bf16" ? at::kBFloat16 : at::kFloat;
}

FsdpOptions fsdp_options(const StrategySettings& s, const LoopSettings& loop, const Node& node,
                         Problems& problems) {
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
  return {.device = device, .timeout = loop.timeout.seconds};
}

std::unique_ptr<Strategy> TrainingPlan::make_strategy(World& world) const {
  return trainer::make_strategy(strategy_name(), world, fsdp, strategy.bucket_cap_mb,
                                loop.sync_batchnorm);
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
  plan.loop = trainer_schema().parse(root["trainer"], problems);
  plan.strategy = parse_strategy(plan.loop.strategy, problems);
  problems.throw_if_any();  // the rest needs these to be right
  for (const std::string& name : plan.strategy.activation_checkpointing)
    if (std::find(plan.loop.recompute.begin(), plan.loop.recompute.end(), name) ==
        plan.loop.recompute.end())
      plan.loop.recompute.push_back(name);
  plan.loop.device = context.device;
  plan.loop.checkpoint_folder =
      (plan.loop.default_root_dir.empty() ? context.exp_dir
                                          : fs::path(plan.loop.default_root_dir)) /
      "checkpoints";
  plan.loop.seed = root["seed"].value_or<std::uint64_t>(0);
  if (plan.strategy.name == "fsdp")
    plan.fsdp = fsdp_options(plan.strategy, plan.loop, plan.loop.strategy, problems);
  const std::string resume = root["fit"]["ckpt_path"].value_or<std::string>("last");
  plan.loop.resume = resume == "last" ? "auto" : resume;

  const auto optimizers = parse_optimizers(root, catalogue, problems);
  problems.throw_if_any();
  for (const OptimizerSettings& each : optimizers)
    plan.optimizers.push_back(optimizer_spec(each, catalogue, problems));
  for (const auto& c : config::parse_best_model_criterion(root["best_model_criterion"], problems))
    plan.criteria.push_back(
        {c.metric, c.lower_is_better ? Better::kLower : Better::kHigher, c.keep});
  for (const Node& node : plan.loop.callbacks.elements())
    read_callback(catalogue, node, plan, problems);
  check_averages(plan.loop.callbacks, catalogue, problems);
  if (!plan.loop.enable_checkpointing) plan.loop.checkpoint_folder.clear();
  read_profiler(catalogue, context, plan, problems);
  const auto logger_list = logger_nodes(plan.loop.logger, problems);
  for (const Node& node : logger_list)
    if (node.defined()) require_code(catalogue, logger_registry(), node, problems);
  problems.throw_if_any();

  if (context.rank == 0 && plan.loop.fast_dev_run.batches == 0) {
    for (const Node& node : logger_list)
      plan.loggers.push_back(
          node.defined()
              ? make_part(catalogue, logger_registry(), node, LoggerContext{context.exp_dir})
              : make_tensorboard_logger(LogFolders(context.exp_dir)
                                            .claim(context.exp_dir / "tensorboard", kEventFiles)));
    // Always there: the report reads it.
    plan.loggers.push_back(make_jsonl_logger(context.exp_dir / "metrics.jsonl"));
  }
  return plan;
}

}  // namespace tutti::trainer
