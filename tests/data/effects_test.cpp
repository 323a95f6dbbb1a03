#include "tutti/data/features/effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

#include "tutti/config/load.h"
#include "tutti/data/preprocess.h"

namespace tutti::data {
namespace {

using testing::HasSubstr;

constexpr int kRate = 16000;

std::vector<float> tone(double hertz, double amplitude = 0.5, int rate = kRate) {
  std::vector<float> x(static_cast<std::size_t>(rate));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(
        amplitude * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  return x;
}

double rms(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

std::vector<EffectGroup> parse(const std::string& yaml, config::Problems& problems) {
  return parse_effects(config::parse_yaml(yaml, "t"), problems);
}
Effect one(const std::string& yaml) {
  config::Problems problems;
  const auto groups = parse("[" + yaml + "]", problems);
  problems.throw_if_any();
  return groups.at(0).choices.at(0).effect;
}
double gain_at(const std::string& yaml, double hertz) {
  return rms(apply_effect(one(yaml), tone(hertz, 0.1), kRate)) / rms(tone(hertz, 0.1));
}

TEST(Effects, FiltersPassAndStopWhatTheirNamesSay) {
  EXPECT_GT(gain_at("[1, lowpass, {cutoff_freq: 1000}]", 100), 0.99);
  EXPECT_LT(gain_at("[1, lowpass, {cutoff_freq: 1000}]", 6000), 0.05);
  EXPECT_LT(gain_at("[1, highpass, {cutoff_freq: 5000}]", 200), 0.01);
  EXPECT_GT(gain_at("[1, highpass, {cutoff_freq: 1000}]", 7000), 0.95);
  EXPECT_NEAR(gain_at("[1, lowpass, {cutoff_freq: 1000, Q: 0.707}]", 1000), std::sqrt(0.5), 0.02);
  EXPECT_GT(gain_at("[1, bandpass, {center_freq: 2000}]", 2000), 0.98);
  EXPECT_LT(gain_at("[1, bandreject, {center_freq: 2000}]", 2000), 0.05);
  EXPECT_NEAR(gain_at("[1, equalization, {center_freq: 1000, gain: 6}]", 1000), 1.995, 0.03);
  EXPECT_NEAR(gain_at("[1, equalization, {center_freq: 1000, gain: 0}]", 1000), 1.0, 1e-4);
}

TEST(Effects, AFilterAboveTheBandStaysInIt) {
  const auto telephone = tone(500, 0.1, 8000);
  const auto out = apply_effect(one("[1, highpass, {cutoff_freq: 5000}]"), telephone, 8000);
  for (const float v : out) ASSERT_TRUE(std::isfinite(v));
}

TEST(Effects, TheOthersDoWhatTheyAreCalled) {
  const auto x = tone(440, 0.25);
  EXPECT_GT(rms(apply_effect(one("[1, contrast]"), x, kRate)), rms(x));
  EXPECT_EQ(apply_effect(one("[1, polarity_inverse]"), x, kRate)[100], -x[100]);
  EXPECT_EQ(apply_effect(one("[1, reverse]"), x, kRate).front(), x.back());
  EXPECT_NEAR(
      static_cast<double>(apply_effect(one("[1, speed_perturb, {factor: 1.25}]"), x, kRate).size()),
      kRate / 1.25, 2);
  const auto there = apply_effect(one("[1, preemphasis, {coeff: 0.9}]"), x, kRate);
  const auto back = apply_effect(one("[1, deemphasis, {coeff: 0.9}]"), there, kRate);
  EXPECT_NEAR(back[5000], x[5000], 1e-4);
  const auto clipped = apply_effect(one("[1, clipping, {max_quantile: 0.75}]"), x, kRate);
  EXPECT_LT(*std::max_element(clipped.begin(), clipped.end()),
            *std::max_element(x.begin(), x.end()));
}

TEST(Effects, EspnetsNestedListsAreRead) {
  config::Problems problems;
  const auto groups = parse(
      "- [0.1, contrast, {enhancement_amount: 75.0}]\n"
      "- - 0.9\n"
      "  - - [0.3, speed_perturb, {factor: 0.9}]\n"
      "    - [0.7, speed_perturb, {factor: 1.1}]\n",
      problems);
  problems.throw_if_any();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[1].choices.size(), 2U);
  // One of the two entries, by weight; inside the second one of its two, by weight.
  std::map<double, int> counts;
  Random random({1});
  for (int i = 0; i < 4000; ++i) {
    const auto drawn = draw_effects(groups, 1, random);
    ASSERT_EQ(drawn.size(), 1U);
    ++counts[drawn[0].name == "contrast" ? 0 : drawn[0].arguments.at("factor")];
  }
  EXPECT_NEAR(counts[0] / 4000.0, 0.1, 0.03);
  EXPECT_NEAR(counts[0.9] / 4000.0, 0.27, 0.04);
  EXPECT_NEAR(counts[1.1] / 4000.0, 0.63, 0.04);
  EXPECT_EQ(draw_effects(groups, 4, random).size(), 2U);
}

TEST(Effects, MistakesAreNamedWithAFix) {
  config::Problems problems;
  const auto groups = parse(
      "[[1, higpass], [1, contrast, {amount: 3}], [0, reverse], [1, reverse], oops]", problems);
  EXPECT_EQ(groups.size(), 1U);
  EXPECT_THAT(problems.describe(), HasSubstr("did you mean 'highpass'"));
  EXPECT_THAT(problems.describe(), HasSubstr("contrast has no argument 'amount'"));
  EXPECT_THAT(problems.describe(), HasSubstr("weight above 0"));
}

TEST(Effects, TrainingDrawsByUtteranceAndEpochAndEvaluationDoesNot) {
  config::Problems problems;
  PreprocessSettings settings;
  settings.effects = parse("[[1, polarity_inverse], [1, contrast], [1, clipping]]", problems);
  settings.effects_prob = 1.0;
  settings.max_effects = 2;
  const auto hear = [&](Mode mode, std::uint64_t epoch) {
    Sample sample{.uid = "u", .speech = tone(300, 0.2), .sample_rate = kRate};
    Preprocessor(settings, {}, 7, mode)(sample, epoch);
    return sample.speech;
  };
  EXPECT_EQ(hear(Mode::kTrain, 1), hear(Mode::kTrain, 1));
  EXPECT_NE(hear(Mode::kTrain, 1), tone(300, 0.2));
  EXPECT_EQ(hear(Mode::kEval, 1), tone(300, 0.2));
  int differ = 0;
  for (std::uint64_t epoch = 2; epoch < 8; ++epoch)
    differ += hear(Mode::kTrain, epoch) != hear(Mode::kTrain, 1);
  EXPECT_GT(differ, 0);
}

}  // namespace
}  // namespace tutti::data
