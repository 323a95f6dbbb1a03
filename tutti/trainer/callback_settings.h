// Where a callback and a key of `trainer:` speak of the same thing: for the check and the run alike.
#pragma once

#include "tutti/config/registry.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::trainer {

// Adds a problem where the two contradict each other.
void check_callback(const config::Component& component, const config::Node& callback,
                    const LoopSettings& settings, config::Problems& problems);

// Adds a problem for a second average of the weights: each puts its own into the model for a validation, so one would
// take the other's for the weights in training.
void check_averages(const config::Node& callbacks, const config::Catalogue& catalogue,
                    config::Problems& problems);

}  // namespace tutti::trainer
