// The model a training config names: ESPnet's model block under a task, a TorchScript file, or what
// a plugin added.
//
//   std::unique_ptr<trainer::TrainableModel> model = make_training_model(training);
//
// A plugin adds models of its own; the program offers the registry as "models":
//
//   extern "C" void tutti_register(tutti::config::PluginHost& host) {
//     host.catalogue().add("inference model", my_schema());   // the keys beside _target_
//     if (auto* models = host.find<tutti::systems::ModelRegistry>("models"))
//       (*models)["my_model"] = [](const tutti::config::Node& training) { return
//       make_mine(training); };
//   }
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tutti/config/node.h"
#include "tutti/data/loader.h"
#include "tutti/trainer/model.h"

namespace tutti::systems {

using ModelRegistry =
    std::map<std::string,
             std::function<std::unique_ptr<trainer::TrainableModel>(const config::Node& training)>,
             std::less<>>;
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
