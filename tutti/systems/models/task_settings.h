// What the `task` of a training config means. Torch-free.
#pragma once

#include "tutti/config/node.h"
#include "tutti/speech/decoding/owsm.h"

namespace tutti::systems {

// Whether a training config is of ESPnet's speech-to-text task (OWSM).
bool is_s2t(const config::Node& training);
// The marks of such a model, by dataset.preprocessor and model.model_conf.
speech::OwsmSymbols owsm_symbols(const config::Node& training);

}  // namespace tutti::systems
