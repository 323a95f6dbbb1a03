// What a config may name, and the code behind each name: optimizers, schedules, callbacks, loggers.
// A plugin adds its own; the programs offer them under these names:
//
//   extern "C" void tutti_register(tutti::config::PluginHost& host) {
//     host.catalogue().add("optimizer", lion_schema());
//     if (auto* optimizers = host.find<tutti::trainer::OptimizerRegistry>("optimizers"))
//       optimizers->add(lion_schema(), [](const LionSettings& s, tutti::trainer::NamedTensors p) {
//         return std::make_unique<Lion>(s, std::move(p));
//       });
//   }
#pragma once

#include <filesystem>

#include "tutti/config/factory.h"
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
