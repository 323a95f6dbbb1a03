// What happens to an utterance between reading and batching, in this order: speed perturbation,
// reverberation, noise, effects, volume, then tokenising.
//
//   Preprocessor prep({.speed_factors = {0.9, 1.0, 1.1}, .noise_prob = 0.5, .noise_db_low = 5,
//   .noise_db_high = 20},
//                     {.noises = noise, .rirs = rirs, .tokenize = bpe}, seed, Mode::kTrain);
//   loader(..., [&](Sample& s, std::uint64_t epoch) { prep(s, epoch); }, ...);
//
// Every random choice is keyed by (seed, epoch, utterance): any number of threads, workers or ranks
// gives the same audio. In Mode::kEval nothing is augmented, whatever the settings (ESPnet3
// augments validation data when asked to augment training data). Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/schema.h"
#include "tutti/data/dataset.h"
#include "tutti/data/features/effects.h"

namespace tutti::data {

using Tokenize = std::function<std::vector<std::int64_t>(const std::string& text)>;

// What happens to the speech of an utterance. systems/preprocessor_settings.h reads it from `dataset.preprocessor`.
struct PreprocessSettings {
  std::vector<double> speed_factors;  // one is drawn per utterance; kept to 1/100
  std::string noise_scp;              // `<id> <file>` lines
  double noise_prob = 1.0;
  double noise_db_low = 13;  // signal-to-noise ratio
  double noise_db_high = 15;
  std::string rir_scp;
  double rir_prob = 1.0;
  double volume_db_low = 0;  // gain
  double volume_db_high = 0;
  double volume_normalize =
      0;  // peak to scale to; 0: off; also in evaluation, as it is no augmentation
  std::int64_t pad_samples = 0;  // shorter ones get zeros up to this (ESPnet's min_sample_size)
  std::int64_t min_samples = 0;  // shorter ones are bad utterances; 0: no limit
  std::int64_t max_samples = 0;
  // ESPnet's data_aug_effects, _num and _prob; set by whoever reads that list (parse_effects), not
  // by the schema.
  std::vector<EffectGroup> effects;
  std::size_t min_effects = 1;
  std::size_t max_effects = 1;
  double effects_prob = 0;
};

enum class Mode { kTrain, kEval };

struct PreprocessParts {
  std::shared_ptr<const Dataset> noises;  // may be null
  std::shared_ptr<const Dataset> rirs;
  Tokenize tokenize;  // may be empty: tokens stay empty
};

class Preprocessor {
 public:
  Preprocessor(PreprocessSettings settings, PreprocessParts parts, std::uint64_t seed, Mode mode);
  // Throws DataError, naming the utterance, for lengths out of range.
  void operator()(Sample& sample, std::uint64_t epoch) const;

 private:
  bool changes_samples() const;

  const PreprocessSettings settings_;
  const PreprocessParts parts_;
  const std::uint64_t seed_;
  const Mode mode_;
};

// The steps, on plain vectors.
std::vector<float> change_speed(const std::vector<float>& speech, double factor);
// Adds `noise` (repeated or cut from `offset`) so that 10 log10(speech power / noise power) =
// snr_db; the power of the speech is taken without its pauses.
void add_noise(std::vector<float>& speech, const std::vector<float>& noise, std::size_t offset,
               double snr_db);
// Convolves with the impulse response from its first sample, as ESPnet does; power (without pauses)
// and length stay what they were.
void reverberate(std::vector<float>& speech, const std::vector<float>& rir);

}  // namespace tutti::data
