// Synthetic speakers, for corpora that need more voices than people recorded: espeak-ng in accents
// and variants, and flite's voices, which were built from people's recordings.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/random.h"

namespace tutti::recipes {

// espeak-ng's variants in two sets that share no voice, and none of the second differs from one of the first in the
// strength of formants alone.
const std::vector<std::string>& training_variants();
const std::vector<std::string>& test_variants();
// flite's voices: the last is kept for tests where corpora hold one out.
const std::vector<std::string>& flite_voices();

// Both write `text` as a WAV file, at a random speed and pitch (espeak-ng: and in a random accent).
// Throws DataError when the program is missing.
void speak_with_espeak(const std::string& text, const std::string& variant, Random& rng,
                       const std::filesystem::path& wav);
void speak_with_flite(const std::string& text, const std::string& voice, Random& rng,
                      const std::filesystem::path& wav);

}  // namespace tutti::recipes
