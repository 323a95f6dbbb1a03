// The model a training config names: ESPnet's model block under a task, a TorchScript file, or what
// a plugin added.
//
//   std::unique_ptr<trainer::TrainableModel> model = make_training_model(training);
//
// A plugin adds models of its own; the schema has the keys beside `_target_`:
//
//   TUTTI_PLUGIN(registry) {
//     registry.add<trainer::TrainableModel>(
//         my_schema(), [](const MySettings& s, const config::Node& training) { return make_mine(s); });
//   }
#pragma once

#include <memory>

#include "tutti/config/factory.h"
#include "tutti/config/plugin_kind.h"
#include "tutti/data/loader.h"
#include "tutti/trainer/model.h"

namespace tutti::systems {

using ModelRegistry = config::Factory<trainer::TrainableModel, const config::Node&>;  // training
ModelRegistry& model_registry();

// Whether its code is the user's: a TorchScript file or a plugin's model.
bool is_users_model(const config::Node& training);

// Seeded by the caller. Throws ConfigError for a `_target_` nobody has.
std::unique_ptr<trainer::TrainableModel> make_training_model(const config::Node& training);

// `prepare`, and after it a DataError with the utterance's name for one that is too short for the
// model: found before it is in a batch, so that on_bad can leave it out. Models that are not ours
// take any length.
data::Prepare refuse_short(data::Prepare prepare, const trainer::TrainableModel& model);

}  // namespace tutti::systems

template <>
struct tutti::config::PluginKind<tutti::trainer::TrainableModel> {
  using Registry = systems::ModelRegistry;
  static constexpr const char* kGroup = "inference model";
};
