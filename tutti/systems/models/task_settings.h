// What the `task` of a training config allows. Torch-free.
#pragma once

#include "tutti/config/node.h"
#include "tutti/config/problem.h"

namespace tutti::systems {

// Whether a training config is of ESPnet's speech-to-text task (OWSM).
bool is_s2t(const config::Node& training);
// A problem for a task whose models can be decoded but not trained.
void check_trainable(const config::Node& training, config::Problems& problems);

}  // namespace tutti::systems
