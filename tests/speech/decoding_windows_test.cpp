#include "tutti/speech/decoding/windows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti::speech {
namespace {

constexpr int kRate = 16000;

// Speech-like bursts (noise whose loudness changes) at the given seconds, in steady noise.
std::vector<float> bursts(double seconds, const std::vector<std::pair<double, double>>& spoken,
                          double noise = 0.003) {
  Random rng({7});
  std::vector<float> out(static_cast<std::size_t>(seconds * kRate));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double t = static_cast<double>(i) / kRate;
    double level = noise;
    for (const auto& [begin, end] : spoken)
      if (t >= begin && t < end) level += 0.1 * (1.2 + std::sin(2 * M_PI * 4 * t));
    out[i] = static_cast<float>(level * rng.normal());
  }
  return out;
}

TEST(Windows, AreCutInPausesAndCoverAllSpeech) {
  const std::vector<std::pair<double, double>> spoken = {{2, 8}, {9.5, 15}, {40, 47}, {48, 55}};
  const auto samples = bursts(70, spoken);
  const auto pieces = cut_in_pauses(samples, kRate, 20);
  ASSERT_GE(pieces.size(), 2U);
  for (const auto& piece : pieces) {
    EXPECT_LE(piece.end - piece.begin, 20U * kRate);
    EXPECT_EQ(piece.begin, piece.keep_begin);
  }
  for (const auto& [begin, end] : spoken)
    for (double t = begin + 0.1; t < end - 0.1; t += 0.1) {
      const auto at = static_cast<std::size_t>(t * kRate);
      bool inside = false;
      for (const auto& piece : pieces) inside = inside || (at >= piece.begin && at < piece.end);
      EXPECT_TRUE(inside) << t;
    }
  // Half a minute of noise alone is not decoded.
  for (const auto& piece : pieces)
    EXPECT_FALSE(piece.begin < 30U * kRate && piece.end > 31U * kRate);
}

TEST(Windows, SpeechWithoutAPauseIsCutWhereItIsQuietest) {
  std::vector<std::pair<double, double>> spoken;
  for (double t = 1; t < 60; t += 7) spoken.emplace_back(t, t + 6.7);  // pauses too short to part
  const auto pieces = cut_in_pauses(bursts(62, spoken), kRate, 10);
  ASSERT_GE(pieces.size(), 6U);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_LE(pieces[i].end - pieces[i].begin, 10U * kRate);
    if (i > 0) {
      EXPECT_GE(pieces[i].begin, pieces[i - 1].end);
    }
  }
}

TEST(Windows, PlainOnesOverlapAndKeepEverySampleOnce) {
  const auto pieces = cut_evenly(100 * kRate, kRate, 30, 2);
  std::size_t next = 0;
  for (const auto& piece : pieces) {
    EXPECT_EQ(piece.keep_begin, next);
    EXPECT_LE(piece.begin, piece.keep_begin);
    EXPECT_GE(piece.end, piece.keep_end);
    EXPECT_LE(piece.end - piece.begin, 30U * kRate);
    next = piece.keep_end;
  }
  EXPECT_EQ(next, 100U * kRate);
  EXPECT_THROW(cut_evenly(1000, kRate, 4, 2), ConfigError);
}

TEST(Windows, NoSpeechIsNoPieces) { EXPECT_TRUE(cut_in_pauses(bursts(70, {}), kRate, 30).empty()); }

}  // namespace
}  // namespace tutti::speech
