// Weights of ESPnet's asr_transducer task under the names of its asr task (espnet/transducer_config.h).
#pragma once

#include "tutti/speech/loading/state_dict.h"

namespace tutti::speech {

bool is_transducer_task(const StateDict& weights);

// What only training used is left out.
StateDict rename_transducer_task(const StateDict& weights);

}  // namespace tutti::speech
