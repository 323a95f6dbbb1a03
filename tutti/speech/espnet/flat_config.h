// ESPnet2's config.yaml (every option of its training program at top level) as a training config of
// ours: `task`, `model`, `dataset.preprocessor` and, of OWSM, `preprocessor_conf`, with the paths
// where the files lie here.
//
//   config::Problems problems;
//   config::Node training = read_training_config(open_model_folder("owsm_v4"), problems);
//   problems.throw_if_any();
//   AsrSettings settings = read_asr_settings(training, problems);
//
// Every key that ESPnet has written since 2020 is one of three: used, harmless when decoding (one
// table in flat_config.cpp), or refused by name because it changes results. Keys nobody knows at top
// level are warned of; inside the blocks of the model they are errors, as everywhere.
#pragma once

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/speech/espnet/model_folder.h"

namespace tutti::speech {

// Also for configs of our own, which come back as they are, but for paths that are found elsewhere
// in the folder. Throws IoError; the rest is in `problems`.
config::Node read_training_config(const ModelFolder& model, config::Problems& problems);

// Whether a config is ESPnet2's: no `task`, and no map under `model`.
bool is_flat_config(const config::Node& config);

// The task of a flat config by what it holds: asr, s2t, or another of ESPnet's, e.g. tts.
std::string guess_task(const config::Node& flat);

}  // namespace tutti::speech
