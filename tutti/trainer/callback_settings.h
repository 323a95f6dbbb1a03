// Where a callback and a key of `trainer:` speak of the same thing: for the check and the run alike.
#pragma once

#include "tutti/config/registry.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::trainer {

// Adds a problem where the two contradict each other.
void check_callback(const config::Component& component, const config::Node& callback,
                    const LoopSettings& settings, config::Problems& problems);

}  // namespace tutti::trainer
