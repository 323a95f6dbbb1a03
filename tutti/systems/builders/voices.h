// Synthetic speakers, for corpora that need more voices than people recorded: espeak-ng in accents
// and variants, and flite's voices, which were built from people's recordings.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/random.h"

namespace tutti::systems {

// espeak-ng's variants in two sets that share no voice.
const std::vector<std::string>& training_variants();
const std::vector<std::string>& test_variants();

// Both write `text` as a WAV file, at a random speed and pitch and in a random accent or voice, and
// return the voice's name. Throws DataError when the program is missing.
std::string speak_with_espeak(const std::string& text, const std::string& variant, Random& rng,
                              const std::filesystem::path& wav);
std::string speak_with_flite(const std::string& text, Random& rng,
                             const std::filesystem::path& wav);

}  // namespace tutti::systems
