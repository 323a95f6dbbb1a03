// What a model folder holds, without loading it: `tutti model show`.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/core/json.h"

namespace tutti::systems {

// Keys: folder, task, made_by, config, weights, parameters, bytes, encoder, decoder, tokens,
// token_type, sample_rate, languages (OWSM), window (OWSM), language_model, missing, problems (what keeps it
// from being decoded, each a sentence). Throws DataError or IoError when it is no model at all.
Json describe_model(const std::filesystem::path& folder);

// The same for people.
std::string model_text(const Json& info);

// A pack of it in `out`: weights as safetensors with today's names, a config of ours, tokens,
// statistics and the sentencepiece model. Throws ConfigError when `out` is there and not empty,
// unless `force` is set.
void convert_model(const std::filesystem::path& folder, const std::filesystem::path& out,
                   bool force);

}  // namespace tutti::systems
