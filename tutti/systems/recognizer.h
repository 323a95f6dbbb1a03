// A trained recogniser from an inference config's `model:` block, or from a packed model.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/core/fingerprint.h"
#include "tutti/data/dataset.h"
#include "tutti/speech/decoding/speech2text.h"

namespace tutti::systems {

struct Recognizer {
  std::shared_ptr<speech::Speech2Text> speech2text;
  int sample_rate = 0;  // Hz, what decode() wants
  // What training did to its samples besides augmentation (volume normalisation). Throws DataError
  // for audio that cannot be used.
  std::function<void(data::Sample& sample)> prepare;
};

// Keys: speech2text_settings.h. Throws ConfigError, or DataError when weights and config do not fit
// each other.
Recognizer load_recognizer(const config::Node& model, std::size_t batch_size);
// From a folder that pack_model made, with the settings its error rates came from; `options` may
// change any key that concerns search. batch_size 0: as the settings say.
Recognizer load_packed_recognizer(const std::filesystem::path& folder, const config::Node& options,
                                  std::size_t batch_size);
// Everything that decides what it says: weights, token list and search settings.
Fingerprint recognizer_inputs(const config::Node& model);

}  // namespace tutti::systems
