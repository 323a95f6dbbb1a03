// What a config may name, and the code behind each name: optimizers, schedules, callbacks, loggers.
// A plugin adds its own:
//
//   TUTTI_PLUGIN(registry) {
//     registry.add<trainer::Optimizer>(lion_schema(), [](const LionSettings& s, trainer::NamedTensors p) {
//       return std::make_unique<Lion>(s, std::move(p));
//     });
//   }
#pragma once

#include <filesystem>

#include "tutti/config/factory.h"
#include "tutti/config/plugin_kind.h"
#include "tutti/trainer/callbacks/callback.h"
#include "tutti/trainer/loggers/logger.h"
#include "tutti/trainer/optim/optimizer.h"
#include "tutti/trainer/optim/schedule.h"

namespace tutti::trainer {

using OptimizerRegistry = config::Factory<Optimizer, NamedTensors>;
using ScheduleRegistry = config::Factory<Schedule, double>;  // base learning rate
using CallbackRegistry = config::Factory<Callback>;
// Where the run is.
struct LoggerContext {
  std::filesystem::path exp_dir;
};
using LoggerRegistry = config::Factory<Logger, const LoggerContext&>;

// Filled with the built-in ones. Add before training begins; not thread-safe.
OptimizerRegistry& optimizer_registry();
ScheduleRegistry& schedule_registry();
CallbackRegistry& callback_registry();
LoggerRegistry& logger_registry();

}  // namespace tutti::trainer

namespace tutti::config {

template <>
struct PluginKind<trainer::Optimizer> {
  using Registry = trainer::OptimizerRegistry;
  static constexpr const char* kGroup = "optimizer";
};
template <>
struct PluginKind<trainer::Schedule> {
  using Registry = trainer::ScheduleRegistry;
  static constexpr const char* kGroup = "scheduler";
};
template <>
struct PluginKind<trainer::Callback> {
  using Registry = trainer::CallbackRegistry;
  static constexpr const char* kGroup = "callback";
};
template <>
struct PluginKind<trainer::Logger> {
  using Registry = trainer::LoggerRegistry;
  static constexpr const char* kGroup = "logger";
};

}  // namespace tutti::config
