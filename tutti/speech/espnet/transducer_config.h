// A model of ESPnet's asr_transducer task in the words of its asr task, which ours are.
//
// That task has an encoder of its own (encoder_conf: a list of blocks under body_conf, and what they
// share under main_conf and input_conf), other names of the same weights
// (loading/transducer_names.h), and other defaults of the search. Blocks of one kind and size are
// the encoders we have; the rest is refused by name.
#pragma once

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/core/json.h"

namespace tutti::speech {

// The keys encoder, encoder_conf, decoder, decoder_conf, joint_net_conf and model_conf of a `model`
// block, from the flat config of a training run.
Json read_transducer_blocks(const config::Node& flat, config::Problems& problems);

// Where its searches differ: keys of speech2text_settings.h with the values they have there.
Json transducer_search_defaults();

}  // namespace tutti::speech
