#include "tutti/data/preprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/data/fixtures.h"
#include "tutti/core/random.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;
using testing::sine;

double power(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return sum / static_cast<double>(x.size());
}

// Holds recordings in memory.
class Recordings : public testing::FakeDataset {
 public:
  explicit Recordings(std::vector<std::vector<float>> audio)
      : FakeDataset(audio.size()), audio_(std::move(audio)) {}
  Sample read(std::size_t i) const override {
    Sample sample;
    sample.uid = uid(i);
    sample.speech = audio_[i];
    sample.sample_rate = 16000;
    return sample;
  }

 private:
  std::vector<std::vector<float>> audio_;
};

Sample sample_of(const std::string& uid) {
  Sample sample;
  sample.uid = uid;
  sample.speech = sine(300, 0.5, 16000);
  sample.sample_rate = 16000;
  sample.text = "a b";
  return sample;
}

std::vector<float> noise_signal(std::size_t n) {
  Random random({3});
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(0.1 * random.normal());
  return out;
}

PreprocessSettings everything() {
  PreprocessSettings s;
  s.speed_factors = {0.9, 1.0, 1.1};
  s.noise_prob = 0.5;
  s.rir_prob = 0.5;
  s.volume_db_low = -6;
  s.volume_db_high = 6;
  return s;
}

PreprocessParts parts() {
  std::vector<float> rir(800, 0.0F);
  rir[20] = 1;
  rir[300] = 0.4F;
  return {std::make_shared<Recordings>(
              std::vector<std::vector<float>>{noise_signal(3000), noise_signal(20000)}),
          std::make_shared<Recordings>(std::vector<std::vector<float>>{rir}),
          [](const std::string& text) {
            return std::vector<std::int64_t>{static_cast<std::int64_t>(text.size())};
          }};
}

TEST(Preprocess, DependsOnSeedEpochAndUtteranceOnly) {
  const Preprocessor prep(everything(), parts(), 5, Mode::kTrain);
  const Preprocessor again(everything(), parts(), 5, Mode::kTrain);
  const Preprocessor other_seed(everything(), parts(), 6, Mode::kTrain);
  int changed_by_epoch = 0, changed_by_seed = 0;
  for (int i = 9; i >= 0; --i) {  // in another order: no hidden state
    Sample a = sample_of("u" + std::to_string(i)), b = a, c = a, d = a;
    prep(a, 1);
    again(b, 1);
    prep(c, 2);
    other_seed(d, 1);
    EXPECT_EQ(a.speech, b.speech);
    EXPECT_EQ(a.tokens, std::vector<std::int64_t>{3});
    changed_by_epoch += a.speech != c.speech;
    changed_by_seed += a.speech != d.speech;
  }
  EXPECT_GE(changed_by_epoch, 9);
  EXPECT_GE(changed_by_seed, 9);
}

TEST(Preprocess, EvaluationIsNeverAugmented) {
  const Preprocessor prep(everything(), parts(), 5, Mode::kEval);
  Sample sample = sample_of("u1");
  prep(sample, 3);
  EXPECT_EQ(sample.speech, sample_of("u1").speech);
  EXPECT_EQ(sample.tokens.size(), 1U);
}

TEST(Preprocess, SpeedFactorsAreDrawnEvenly) {
  PreprocessSettings s;
  s.speed_factors = {0.9, 1.0, 1.1};
  const Preprocessor prep(s, {}, 1, Mode::kTrain);
  std::map<std::size_t, int> lengths;
  for (int i = 0; i < 300; ++i) {
    Sample sample = sample_of("u" + std::to_string(i));
    prep(sample, 0);
    ++lengths[sample.speech.size()];
  }
  EXPECT_EQ(lengths.size(), 3U);
  EXPECT_NEAR(lengths[8000], 100, 30);
  EXPECT_NEAR(lengths[8889], 100, 30);
  EXPECT_NEAR(lengths[7273], 100, 30);
}

TEST(Preprocess, NoiseHasTheAskedRatio) {
  for (const double snr : {-5.0, 0.0, 20.0}) {
    const std::vector<float> clean = sine(300, 0.5, 16000);
    std::vector<float> noisy = clean;
    add_noise(noisy, noise_signal(3000), 2900, snr);
    std::vector<float> difference(clean.size());
    for (std::size_t i = 0; i < clean.size(); ++i) difference[i] = noisy[i] - clean[i];
    EXPECT_NEAR(10 * std::log10(power(clean) / power(difference)), snr, 0.01);
  }
  std::vector<float> silence(100, 0.0F);
  add_noise(silence, noise_signal(10), 0, 10);
  EXPECT_EQ(power(silence), 0);
}

TEST(Preprocess, PausesDoNotCountAsSpeech) {
  // Half of it silence: the noise is as loud as if there were none.
  const std::vector<float> half = sine(300, 0.512, 16000);
  std::vector<float> clean = half;
  clean.resize(2 * half.size());
  std::vector<float> noisy = clean;
  add_noise(noisy, noise_signal(3000), 0, 10);
  std::vector<float> difference(clean.size());
  for (std::size_t i = 0; i < clean.size(); ++i) difference[i] = noisy[i] - clean[i];
  EXPECT_NEAR(10 * std::log10(power(half) / power(difference)), 10, 0.3);
}

TEST(Preprocess, ReverberationKeepsLengthAndPowerAndDelays) {
  std::vector<float> rir(500, 0.0F);
  rir[100] = -1;
  std::vector<float> speech = sine(300, 0.5, 16000);
  const std::vector<float> before = speech;
  reverberate(speech, rir);
  ASSERT_EQ(speech.size(), before.size());
  for (std::size_t i = 0; i < 100; ++i) ASSERT_NEAR(speech[i], 0, 1e-4);
  EXPECT_NEAR(power(speech), power(before), 0.02 * power(before));
}

TEST(Preprocess, PeaksStayWithinFullScale) {
  PreprocessSettings s;
  s.noise_db_low = s.noise_db_high = -20;
  PreprocessParts parts;
  parts.noises = std::make_shared<Recordings>(std::vector<std::vector<float>>{noise_signal(3000)});
  Sample sample = sample_of("u");
  Preprocessor(s, std::move(parts), 0, Mode::kTrain)(sample, 0);
  for (const float v : sample.speech) ASSERT_LE(std::abs(v), 1.0001F);
}

TEST(Preprocess, LengthLimitsNameTheUtterance) {
  PreprocessSettings s;
  s.min_samples = 9000;
  Sample sample = sample_of("short one");
  try {
    Preprocessor(s, {}, 0, Mode::kEval)(sample, 0);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("short one: 8000 samples, at least 9000"));
  }
}

}  // namespace
}  // namespace tutti::data
