// Weights of another model to begin with, and parameters that do not learn: `init_param`,
// `ignore_init_mismatch` and `freeze_param` of a training config, as ESPnet spells them.
//
//   init_param:
//     - pretrained/asr_conformer                         # everything; a published folder or archive
//     - exp/big/checkpoints:encoder:encoder              # one part; our checkpoints too
//     - m.pth:decoder:decoder:decoder.embed,decoder.output_layer   # all of it but two layers
//     - encoder.pth::encoder                             # a file without the prefix
//   freeze_param: [frontend, encoder.embed, encoder.encoders.0]
//
// SOURCE[:NAME_THERE[:NAME_HERE[:EXCEPT,EXCEPT...]]]; later entries go over earlier ones. Unlike in
// ESPnet, names end at dots (`decoder` is not `decoder2`), an empty EXCEPT leaves nothing out, names
// of older versions are known, and an entry that has no effect is an error.
#pragma once

#include <string>

#include "tutti/config/node.h"
#include "tutti/trainer/model.h"

namespace tutti::systems {

struct Beginning {
  std::string
      table;  // what was loaded, left and frozen, for people; empty: the config asks for nothing
  std::string warning;  // what is frozen at random values; empty: nothing
};

// Before the model meets its strategy. Throws ConfigError, or DataError naming every tensor that does
// not fit.
Beginning start_from(const config::Node& training, trainer::TrainableModel& model);

}  // namespace tutti::systems
