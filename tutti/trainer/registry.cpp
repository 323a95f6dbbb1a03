#include "tutti/trainer/registry.h"

#include "tutti/config/schemas/callbacks.h"
#include "tutti/trainer/loggers/folders.h"

namespace tutti::trainer {
namespace {

namespace fs = std::filesystem;

template <class AdamLike>
OptimizerOptions adam_options(OptimizerKind kind, const AdamLike& from) {
  OptimizerOptions to = default_options(kind);
  to.lr = from.lr;
  to.beta1 = from.betas[0];
  to.beta2 = from.betas[1];
  to.eps = from.eps;
  to.weight_decay = from.weight_decay;
  to.amsgrad = from.amsgrad;
  return to;
}

OptimizerOptions sgd_options(const config::SgdSettings& s) {
  return {.kind = OptimizerKind::kSgd,
          .lr = s.lr,
          .weight_decay = s.weight_decay,
          .momentum = s.momentum,
          .dampening = s.dampening,
          .nesterov = s.nesterov};
}

template <class Settings>
void add_optimizer(OptimizerRegistry& registry, const config::Schema<Settings>& schema) {
  registry.add(schema, [](const Settings& s, NamedTensors parameters) {
    return make_optimizer(s, std::move(parameters));
  });
}

template <class Settings>
void add_schedule(ScheduleRegistry& registry, const config::Schema<Settings>& schema) {
  registry.add(schema, [](const Settings& s, double base_lr) { return make_schedule(s, base_lr); });
}

OptimizerRegistry built_in_optimizers() {
  OptimizerRegistry out("optimizer");
  out.add(config::adam_schema(), [](const config::AdamSettings& s, NamedTensors parameters) {
    return make_optimizer(adam_options(OptimizerKind::kAdam, s), std::move(parameters));
  });
  out.add(config::adamw_schema(), [](const config::AdamWSettings& s, NamedTensors parameters) {
    return make_optimizer(adam_options(OptimizerKind::kAdamW, s), std::move(parameters));
  });
  out.add(config::sgd_schema(), [](const config::SgdSettings& s, NamedTensors parameters) {
    return make_optimizer(sgd_options(s), std::move(parameters));
  });
  add_optimizer(out, config::radam_schema());
  add_optimizer(out, config::nadam_schema());
  add_optimizer(out, config::adagrad_schema());
  add_optimizer(out, config::adadelta_schema());
  add_optimizer(out, config::rmsprop_schema());
  return out;
}

ScheduleRegistry built_in_schedules() {
  ScheduleRegistry out("scheduler");
  add_schedule(out, config::constant_schema());
  add_schedule(out, config::warmup_lr_schema());
  add_schedule(out, config::piecewise_linear_warmup_lr_schema());
  add_schedule(out, config::noam_lr_schema());
  add_schedule(out, config::cosine_warmup_lr_schema());
  add_schedule(out, config::tri_stage_lr_schema());
  add_schedule(out, config::plateau_lr_schema());
  add_schedule(out, config::step_lr_schema());
  add_schedule(out, config::multi_step_lr_schema());
  add_schedule(out, config::exponential_lr_schema());
  add_schedule(out, config::cosine_annealing_lr_schema());
  add_schedule(out, config::cosine_restarts_lr_schema());
  add_schedule(out, config::one_cycle_lr_schema());
  add_schedule(out, config::linear_lr_schema());
  add_schedule(out, config::constant_lr_schema());
  add_schedule(out, config::polynomial_lr_schema());
  return out;
}

CallbackRegistry built_in_callbacks() {
  CallbackRegistry out("callback");
  out.add(config::early_stopping_schema(), [](const config::EarlyStoppingSettings& s) {
    return make_early_stopping({.monitor = s.monitor,
                                .better = s.mode == "max" ? Better::kHigher : Better::kLower,
                                .min_delta = s.min_delta,
                                .patience = s.patience,
                                .check_finite = s.check_finite,
                                .stopping_threshold = s.stopping_threshold,
                                .divergence_threshold = s.divergence_threshold});
  });
  out.add(config::ema_schema(), [](const config::EmaSettings& s) {
    return make_ema({.decay = s.decay,
                     .every_n_steps = s.update_every_n_steps,
                     .start_step = s.update_starting_at_step});
  });
  out.add(config::device_stats_schema(),
          [](const config::DeviceStatsSettings& s) { return make_device_stats(s.cpu_stats); });
  return out;
}

LoggerRegistry built_in_loggers() {
  LoggerRegistry out("logger");
  out.add(config::tensorboard_schema(), [](const config::TensorBoardSettings& s,
                                           const LoggerContext& context) {
    const LogFolders folders(context.exp_dir);
    const fs::path folder = folders.choose(s.save_dir, s.name, s.version) / s.sub_dir;
    return with_prefix(s.prefix, make_tensorboard_logger(folders.claim(folder, kEventFiles)));
  });
  out.add(config::csv_schema(), [](const config::CsvSettings& s, const LoggerContext& context) {
    const LogFolders folders(context.exp_dir);
    const fs::path folder = folders.choose(s.save_dir, s.name, s.version);
    return with_prefix(s.prefix, make_csv_logger(folders.claim(folder, "metrics.csv"),
                                                 s.flush_logs_every_n_steps));
  });
  out.add(config::mlflow_schema(),
          [](const config::MlflowSettings& s, const LoggerContext& context) {
            const std::string uri = s.tracking_uri.value_or(s.save_dir);
            const bool marked = uri.rfind("file:", 0) == 0;
            std::string folder = marked ? uri.substr(5) : uri;
            if (marked && folder.rfind("//", 0) == 0) folder.erase(0, 2);
            return with_prefix(
                s.prefix,
                make_mlflow_logger({.folder = folder,
                                    .experiment = s.experiment_name,
                                    .run = s.run_name.value_or(context.exp_dir.filename().string()),
                                    .note = context.exp_dir / kMlflowNote,
                                    .tags = s.tags}));
          });
  out.add(config::jsonl_schema(), [](const config::JsonlSettings& s, const LoggerContext& context) {
    const fs::path path = fs::path(s.save_dir.empty() ? "." : s.save_dir) / s.file;
    LogFolders(context.exp_dir).claim(path.parent_path(), path.filename().string());
    return make_jsonl_logger(path);
  });
  return out;
}

}  // namespace

OptimizerRegistry& optimizer_registry() {
  static OptimizerRegistry registry = built_in_optimizers();
  return registry;
}
ScheduleRegistry& schedule_registry() {
  static ScheduleRegistry registry = built_in_schedules();
  return registry;
}
CallbackRegistry& callback_registry() {
  static CallbackRegistry registry = built_in_callbacks();
  return registry;
}
LoggerRegistry& logger_registry() {
  static LoggerRegistry registry = built_in_loggers();
  return registry;
}

}  // namespace tutti::trainer
