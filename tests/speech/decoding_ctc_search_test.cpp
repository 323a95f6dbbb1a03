#include "tutti/speech/decoding/ctc_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tutti/core/random.h"

namespace tutti::speech {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Matrix {
  std::size_t frames, vocab;
  std::vector<float> values;
  LogProbs view() const { return {values.data(), frames, vocab}; }
};

Matrix random_matrix(Random& rng, std::size_t frames, std::size_t vocab, double peak) {
  Matrix m{frames, vocab, std::vector<float>(frames * vocab)};
  for (std::size_t t = 0; t < frames; ++t) {
    double sum = 0;
    for (std::size_t v = 0; v < vocab; ++v)
      sum += std::exp(m.values[t * vocab + v] = static_cast<float>(peak * rng.normal()));
    for (std::size_t v = 0; v < vocab; ++v)
      m.values[t * vocab + v] -= static_cast<float>(std::log(sum));
  }
  return m;
}

std::vector<int> collapse(const std::vector<int>& path) {
  std::vector<int> out;
  int previous = 0;
  for (int token : path) {
    if (token != 0 && token != previous) out.push_back(token);
    previous = token;
  }
  return out;
}

template <class Visit>
void each_path(const Matrix& m, const Visit& visit) {
  std::vector<int> path(m.frames, 0);
  while (true) {
    double score = 0;
    for (std::size_t t = 0; t < m.frames; ++t)
      score += m.values[t * m.vocab + static_cast<std::size_t>(path[t])];
    visit(path, score);
    std::size_t t = 0;
    while (t < m.frames && ++path[t] == static_cast<int>(m.vocab)) path[t++] = 0;
    if (t == m.frames) return;
  }
}

TEST(CtcAlign, IsTheBestPathOfTheTokens) {
  Random rng({2});
  for (int round = 0; round < 60; ++round) {
    const Matrix m = random_matrix(rng, 1 + rng.below(6), 2 + rng.below(2), 1.5);
    std::map<std::vector<int>, std::pair<double, std::vector<int>>> best;
    each_path(m, [&](const std::vector<int>& path, double score) {
      const auto [it, fresh] = best.emplace(collapse(path), std::make_pair(score, path));
      if (!fresh && score > it->second.first) it->second = {score, path};
    });
    for (const auto& [tokens, winner] : best) {
      const auto times = ctc_align(m.view(), tokens);
      ASSERT_EQ(times.size(), tokens.size());
      std::vector<int> path(m.frames, 0);
      for (std::size_t i = 0; i < times.size(); ++i) {
        ASSERT_EQ(times[i].token, tokens[i]);
        ASSERT_LT(times[i].begin_frame, times[i].end_frame);
        for (std::size_t t = times[i].begin_frame; t < times[i].end_frame; ++t) path[t] = tokens[i];
      }
      ASSERT_EQ(path, winner.second);
    }
  }
}

TEST(CtcAlign, TooFewFramesGiveNothing) {
  Random rng({3});
  const Matrix m = random_matrix(rng, 3, 3, 1);
  EXPECT_THAT(ctc_align(m.view(), {1, 1, 2}), IsEmpty()) << "the repeat needs a blank: four frames";
  EXPECT_EQ(ctc_align(m.view(), {1, 2, 1}).size(), 3u);
  EXPECT_THAT(ctc_align(m.view(), {}), IsEmpty());
}

TEST(CtcGreedy, JoinsRepeatsAndKnowsWhen) {
  const auto frame = [](int best) {
    std::vector<float> row(3, -5.0f);
    row[static_cast<std::size_t>(best)] = -0.1f;
    return row;
  };
  Matrix m{7, 3, {}};
  for (int best : {0, 1, 1, 0, 1, 2, 0})
    for (float value : frame(best)) m.values.push_back(value);
  const CtcHypothesis h = ctc_greedy(m.view());
  EXPECT_THAT(h.tokens, ElementsAre(1, 1, 2));
  EXPECT_EQ(h.times[0].begin_frame, 1u);
  EXPECT_EQ(h.times[0].end_frame, 3u);
  EXPECT_EQ(h.times[2].begin_frame, 5u);
  EXPECT_NEAR(h.score, -0.7, 1e-6);
  EXPECT_NEAR(h.times[0].log_prob, -0.1, 1e-6);
  EXPECT_THAT(ctc_greedy({nullptr, 0, 3}).tokens, IsEmpty());
}

}  // namespace
}  // namespace tutti::speech
