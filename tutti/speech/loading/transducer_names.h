// Weights of ESPnet's asr_transducer task under the names of its asr task (espnet/transducer_config.h).
#pragma once

#include "tutti/speech/loading/state_dict.h"

namespace tutti::speech {

bool is_transducer_task(const StateDict& weights);

// Renames, and adapts what the encoders do differently: there the first block's input is not
// multiplied by the root of its width, a Branchformer merges without a convolution, and the joint
// network may have no bias. What only training used is left out.
StateDict rename_transducer_task(const StateDict& weights);

}  // namespace tutti::speech
