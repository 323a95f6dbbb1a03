// Where a recogniser comes from: the keys of ESPnet's inference classes, a published folder, a pack.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/config/node.h"
#include "tutti/speech/decoding/speech2text_settings.h"
#include "tutti/speech/espnet/model_folder.h"

namespace tutti::systems {

// By asr_train_config and asr_model_file, the same with s2t_, or model_tag. A config that is not
// named is config.yaml beside the weights. Throws ConfigError when a key is missing or one too many
// is there.
speech::ModelFolder named_model(const speech::Speech2TextOptions& options);

// The language model that the options name, instead of one that came with the model.
void name_language_model(const speech::Speech2TextOptions& options, speech::ModelFolder& model);

// Its training config: ours, wherever the experiment was moved; or ESPnet's, as one of ours. Throws
// ConfigError with all keys that cannot be honoured.
config::Node read_model_config(const speech::ModelFolder& model);

// What the model itself says about decoding, and the defaults of ESPnet's class for it, for keys that
// `asked` does not set.
void complete_options(const config::Node& training, const config::Node& asked,
                      speech::Speech2TextOptions& options);

// The file that a config means by `asked`, which may be ESPnet3's name of it: EXP_DIR/valid.acc.ave_10best.pth is
// EXP_DIR/checkpoints/valid.acc.ave_10best.safetensors, or the average of as many as were kept. Throws DataError.
std::filesystem::path find_weights(const std::filesystem::path& asked);
// Before find_weights, where a stage begins: an average that an experiment's training has left behind, or that is
// damaged, is made anew from the best weights of now.
void renew_average(const std::filesystem::path& asked);

bool is_pack(const std::filesystem::path& folder);

// Throws ConfigError, with a name that is there and looks like it, for a model that is not. `key`: who asked for it.
void refuse_missing_model(const std::filesystem::path& asked, const std::string& key);

}  // namespace tutti::systems
