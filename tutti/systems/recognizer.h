// A trained recogniser from an inference config's `model:` block, or from a packed model.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/speech/decoding/speech2text.h"

namespace tutti::systems {

struct Recognizer {
  std::shared_ptr<speech::Speech2Text> speech2text;
  int sample_rate = 0;  // Hz, what decode() wants
};

// Keys are those of ESPnet's Speech2Text: asr_train_config, asr_model_file, beam_size, ctc_weight,
// maxlenratio, ... Throws ConfigError, or DataError when weights and config do not fit each other.
Recognizer load_recognizer(const config::Node& model, std::size_t batch_size);
// From a folder that pack_model made; `options` may set the keys that concern search.
Recognizer load_packed_recognizer(const std::filesystem::path& folder, const config::Node& options,
                                  std::size_t batch_size);
// `tutti infer --model PACK FILE...`: prints a line per file, or JSON objects.
void recognise_files(const std::filesystem::path& pack, const std::vector<std::string>& files,
                     bool as_json);
// The files whose content decides what it says.
std::vector<std::string> recognizer_files(const config::Node& model);

}  // namespace tutti::systems
