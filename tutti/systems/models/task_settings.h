// What the `task` of a training config means. Torch-free.
#pragma once

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/speech/decoding/owsm.h"

namespace tutti::systems {

// Whether a training config is of ESPnet's speech-to-text task (OWSM), or of OWSM-CTC's.
bool is_s2t(const config::Node& training);
bool is_s2t_ctc(const config::Node& training);
// Whether a training config was made of a folder of ESPnet's asr_transducer task (flat_config.h).
bool is_transducer_task(const config::Node& training);
// A problem for a task whose models can be decoded but not trained.
void check_trainable(const config::Node& training, config::Problems& problems);
// The marks of either, by dataset.preprocessor and model.model_conf.
speech::OwsmSymbols owsm_symbols(const config::Node& training);

}  // namespace tutti::systems
