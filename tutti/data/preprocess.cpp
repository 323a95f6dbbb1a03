#include "tutti/data/preprocess.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/data/features/fft.h"
#include "tutti/data/io/resample.h"

namespace tutti::data {
namespace {

double power(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return x.empty() ? 0 : sum / static_cast<double>(x.size());
}

// Power without the pauses, so that a clip with long ones gets no less noise: frames of 1024 samples
// every 512, those with more than a hundredth of the mean count. ESPnet measures so.
double spoken_power(const std::vector<float>& x) {
  constexpr std::size_t kFrame = 1024, kShift = 512;
  if (x.size() < kFrame) return power(x);
  std::vector<double> frames;
  double mean = 0;
  for (std::size_t begin = 0; begin + kShift < x.size(); begin += kShift) {
    double sum = 0;  // what is past the end counts as zeros
    for (std::size_t i = begin; i < std::min(x.size(), begin + kFrame); ++i)
      sum += static_cast<double>(x[i]) * x[i];
    frames.push_back(sum / kFrame);
    mean += frames.back();
  }
  mean /= static_cast<double>(frames.size());
  if (mean <= 0) return 0;
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (frames[std::min(i / kShift, frames.size() - 1)] <= 0.01 * mean) continue;
    sum += static_cast<double>(x[i]) * x[i];
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

void scale(std::vector<float>& x, double gain) {
  for (float& v : x) v = static_cast<float>(v * gain);
}

// Noise and rooms may push peaks over full scale; then the whole utterance becomes quieter.
void limit_peak(std::vector<float>& x) {
  float peak = 0;
  for (const float v : x) peak = std::max(peak, std::abs(v));
  if (peak > 1) scale(x, 1 / peak);
}

// A recording out of `dataset`, at the speech's rate.
std::vector<float> draw(const Dataset& dataset, int sample_rate, Random& random) {
  const Sample sample = dataset.read(random.below(dataset.size()));
  return resample(sample.speech, sample.sample_rate > 0 ? sample.sample_rate : sample_rate,
                  sample_rate);
}

}  // namespace

std::vector<float> change_speed(const std::vector<float>& speech, double factor) {
  // A factor of 1.1 plays 1.1 s in 1 s. Kept to hundredths: a filter has as many phases.
  const int hundredths = static_cast<int>(std::lround(factor * 100));
  return resample(speech, hundredths, 100);
}

void add_noise(std::vector<float>& speech, const std::vector<float>& noise, std::size_t offset,
               double snr_db) {
  if (noise.empty() || speech.empty()) return;
  std::vector<float> part(speech.size());
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = noise[(offset + i) % noise.size()];
  const double noise_power = power(part);
  const double speech_power = spoken_power(speech);
  if (noise_power <= 0 || speech_power <= 0) return;
  const double gain = std::sqrt(speech_power / noise_power * std::pow(10.0, -snr_db / 10));
  for (std::size_t i = 0; i < speech.size(); ++i) speech[i] += static_cast<float>(gain * part[i]);
}

void reverberate(std::vector<float>& speech, const std::vector<float>& rir) {
  const double before = spoken_power(speech);
  if (rir.empty() || before <= 0) return;
  const std::vector<float> wet = convolve(speech, rir);
  std::copy_n(wet.begin(), speech.size(), speech.begin());
  const double after = spoken_power(speech);
  if (after > 0) scale(speech, std::sqrt(before / after));
}

Preprocessor::Preprocessor(PreprocessSettings settings, PreprocessParts parts, std::uint64_t seed,
                           Mode mode)
    : settings_(std::move(settings)), parts_(std::move(parts)), seed_(seed), mode_(mode) {}

bool Preprocessor::changes_samples() const {
  const bool augments = !settings_.speed_factors.empty() || parts_.rirs != nullptr ||
                        parts_.noises != nullptr || !settings_.effects.empty() ||
                        settings_.volume_db_low != 0 || settings_.volume_db_high != 0;
  return settings_.volume_normalize > 0 || (mode_ == Mode::kTrain && augments);
}

void Preprocessor::operator()(Sample& sample, std::uint64_t epoch) const {
  std::vector<float>& speech = sample.speech;
  // What is not finite would reach weights and statistics; text-only entries have no rate.
  if (const std::string problem = audio_problem(speech);
      !problem.empty() && (sample.sample_rate > 0 || !speech.empty()))
    throw DataError(sample.uid + ": the audio " + problem);
  const auto count = static_cast<std::int64_t>(speech.size());
  if (settings_.min_samples > 0 && count < settings_.min_samples)
    throw DataError(fmt::format("{}: {} samples, at least {} are asked for (min_samples)",
                                sample.uid, count, settings_.min_samples));
  if (settings_.max_samples > 0 && count > settings_.max_samples)
    throw DataError(fmt::format("{}: {} samples, at most {} are allowed (max_samples)", sample.uid,
                                count, settings_.max_samples));
  if (sample.feature_dim > 0 && changes_samples())
    throw ConfigError("preprocessor: augmentation and volume need samples, but " + sample.uid +
                          " holds features made elsewhere",
                      "remove those keys, or train on audio");
  if (mode_ == Mode::kTrain && !speech.empty() && sample.feature_dim == 0) {
    // One stream per step, so that switching one on does not change what another draws.
    const std::uint64_t who = hash64(sample.uid);
    const auto stream = [&](const char* step) { return Random({seed_, epoch, who, hash64(step)}); };
    if (!settings_.speed_factors.empty()) {
      const double factor =
          settings_.speed_factors[stream("speed").below(settings_.speed_factors.size())];
      if (factor != 1.0) speech = change_speed(speech, factor);
    }
    if (Random random = stream("rir");
        parts_.rirs != nullptr && parts_.rirs->size() > 0 && random.uniform() < settings_.rir_prob)
      reverberate(speech, draw(*parts_.rirs, sample.sample_rate, random));
    if (Random random = stream("noise"); parts_.noises != nullptr && parts_.noises->size() > 0 &&
                                         random.uniform() < settings_.noise_prob) {
      const std::vector<float> noise = draw(*parts_.noises, sample.sample_rate, random);
      const double snr_db = random.uniform(settings_.noise_db_low, settings_.noise_db_high);
      add_noise(speech, noise, noise.empty() ? 0 : random.below(noise.size()), snr_db);
    }
    if (parts_.rirs != nullptr || parts_.noises != nullptr) limit_peak(speech);
    if (Random random = stream("effects");
        !settings_.effects.empty() && random.uniform() < settings_.effects_prob) {
      const std::size_t count =
          settings_.min_effects + random.below(settings_.max_effects - settings_.min_effects + 1);
      for (const Effect& effect : draw_effects(settings_.effects, count, random))
        speech = apply_effect(effect, std::move(speech), sample.sample_rate);
    }
    if (settings_.volume_db_low != 0 || settings_.volume_db_high != 0)
      scale(speech, std::pow(10.0, stream("volume").uniform(settings_.volume_db_low,
                                                            settings_.volume_db_high) /
                                       20));
  }
  if (settings_.pad_samples > 0 && sample.feature_dim == 0 &&
      static_cast<std::int64_t>(speech.size()) < settings_.pad_samples)
    speech.resize(static_cast<std::size_t>(settings_.pad_samples));
  if (settings_.volume_normalize > 0) {
    float peak = 0;
    for (const float v : speech) peak = std::max(peak, std::abs(v));
    if (peak > 0) scale(speech, settings_.volume_normalize / peak);
  }
  if (parts_.tokenize) {
    sample.tokens = parts_.tokenize(sample.text);
    sample.is_tokenized = true;
  }
}

}  // namespace tutti::data
