#include "tutti/speech/metrics/edit_distance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti::speech {
namespace {

using Words = std::vector<std::string>;

// The definition, without dynamic programming.
std::int64_t brute_force(const Words& a, std::size_t i, const Words& b, std::size_t j) {
  if (i == a.size()) return static_cast<std::int64_t>(b.size() - j);
  if (j == b.size()) return static_cast<std::int64_t>(a.size() - i);
  if (a[i] == b[j]) return brute_force(a, i + 1, b, j + 1);
  return 1 + std::min({brute_force(a, i + 1, b, j + 1), brute_force(a, i + 1, b, j),
                       brute_force(a, i, b, j + 1)});
}

Words random_words(Random& rng, std::uint64_t longest, std::uint64_t kinds) {
  Words out(rng.below(longest + 1));
  for (std::string& word : out) word = std::string(1, static_cast<char>('a' + rng.below(kinds)));
  return out;
}

TEST(EditDistance, AgreesWithBruteForceAndIsAnAlignment) {
  Random rng({1});
  for (int round = 0; round < 2000; ++round) {
    const Words ref = random_words(rng, 7, 3), hyp = random_words(rng, 7, 3);
    // Every other time with so little memory that the halves are aligned apart.
    const Alignment a = align(ref, hyp, round % 2 == 0 ? std::size_t{1} << 26 : 6);
    ASSERT_EQ(a.counts, align(ref, hyp, 1).counts);
    ASSERT_EQ(a.counts.errors(), brute_force(ref, 0, hyp, 0));
    ASSERT_EQ(a.counts.reference_size(), static_cast<std::int64_t>(ref.size()));
    ASSERT_EQ(a.counts.hypothesis_size(), static_cast<std::int64_t>(hyp.size()));
    // The pairs walk through both sequences in order and say the truth about each step.
    int next_ref = 0, next_hyp = 0;
    EditCounts seen;
    for (const AlignedPair& pair : a.pairs) {
      if (pair.reference >= 0) {
        ASSERT_EQ(pair.reference, next_ref++);
      }
      if (pair.hypothesis >= 0) {
        ASSERT_EQ(pair.hypothesis, next_hyp++);
      }
      const bool both = pair.reference >= 0 && pair.hypothesis >= 0;
      if (both) {
        const bool same = ref[static_cast<std::size_t>(pair.reference)] ==
                          hyp[static_cast<std::size_t>(pair.hypothesis)];
        ASSERT_EQ(pair.op, same ? EditOp::kHit : EditOp::kSubstitution);
        ++(same ? seen.hits : seen.substitutions);
      } else if (pair.reference >= 0) {
        ASSERT_EQ(pair.op, EditOp::kDeletion);
        ++seen.deletions;
      } else {
        ASSERT_EQ(pair.op, EditOp::kInsertion);
        ++seen.insertions;
      }
    }
    ASSERT_EQ(seen, a.counts);
  }
}

TEST(EditDistance, SwappingTheSidesSwapsDeletionsAndInsertions) {
  Random rng({2});
  for (int round = 0; round < 300; ++round) {
    const Words ref = random_words(rng, 12, 4), hyp = random_words(rng, 12, 4);
    const EditCounts there = align(ref, hyp).counts, back = align(hyp, ref).counts;
    EXPECT_EQ(there.errors(), back.errors());
    EXPECT_EQ(there.deletions, back.insertions);
    EXPECT_EQ(there.substitutions, back.substitutions);
  }
}

TEST(EditDistance, EmptySides) {
  EXPECT_EQ(align({}, {}).counts.error_rate(), 0);
  EXPECT_EQ(align({"a", "b"}, {}).counts.error_rate(), 1);
  EXPECT_TRUE(std::isinf(align({}, {"a"}).counts.error_rate()));
}

TEST(EditCounts, SumsAreExactInAnyOrderAndTravelAsJson) {
  EditCounts a{1, 2, 3, 4}, b{10, 20, 30, 40};
  EditCounts ab = a, ba = b;
  ab += b, ba += a;
  EXPECT_EQ(ab, ba);
  EXPECT_EQ(EditCounts::from_json(ab.to_json(), "x"), ab);
  EXPECT_THROW(EditCounts::from_json(Json{{"hits", 1.5}}, "x"), DataError);
  EXPECT_THROW(EditCounts::from_json(Json::array(), "x"), DataError);
}

}  // namespace
}  // namespace tutti::speech
