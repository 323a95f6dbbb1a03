#include "tutti/speech/decoding/batching.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tutti/core/random.h"

namespace tutti::speech {
namespace {

std::vector<std::int64_t> random_lengths(Random& rng, std::size_t count) {
  std::vector<std::int64_t> lengths(count);
  for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(rng.below(100));
  return lengths;
}

TEST(Batching, EveryItemOnceWithinTheBudgetWhateverTheMemory) {
  Random rng({1});
  for (int round = 0; round < 200; ++round) {
    const auto lengths = random_lengths(rng, rng.below(60));
    const BatchBudget given{
        1 + rng.below(20),
        rng.below(2) == 0 ? 0 : static_cast<std::int64_t>(100 + rng.below(1000))};
    BatchBudget budget = given;
    const auto memory = static_cast<std::int64_t>(100 + rng.below(1500));
    std::vector<int> done(lengths.size(), 0);
    int failures = 0;
    for_each_batch(lengths, budget, [&](const std::vector<std::size_t>& items) {
      ASSERT_FALSE(items.empty());
      ASSERT_LE(items.size(), given.max_items);
      std::int64_t longest = 0;
      for (std::size_t item : items) longest = std::max(longest, lengths[item]);
      const std::int64_t total = longest * static_cast<std::int64_t>(items.size());
      if (given.max_total > 0 && items.size() > 1) {
        ASSERT_LE(total, given.max_total);
      }
      if (total > memory) {
        ++failures;
        throw OutOfMemory("full");
      }
      for (std::size_t item : items) ++done[item];
    });
    EXPECT_EQ(std::count(done.begin(), done.end(), 1), static_cast<std::ptrdiff_t>(done.size()));
    EXPECT_LE(failures, 6) << "halving finds the size in a few tries and then remembers it";
  }
}

TEST(Batching, LongestFirst) {
  std::vector<std::size_t> order;
  BatchBudget budget{.max_items = 2};
  for_each_batch({3, 9, 5}, budget, [&](const std::vector<std::size_t>& items) {
    order.insert(order.end(), items.begin(), items.end());
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{1, 2, 0}));
}

TEST(Batching, TheNextCallKnowsWhatFitted) {
  BatchBudget budget{.max_items = 8};
  int failures = 0;
  for (int call = 0; call < 3; ++call)
    for_each_batch(std::vector<std::int64_t>(8, 10), budget, [&](const auto& items) {
      if (items.size() <= 2) return;
      ++failures;
      throw OutOfMemory("full");
    });
  EXPECT_EQ(failures, 2) << "8, then 4, in the first call alone";
}

TEST(Batching, OneItemThatDoesNotFitIsReportedAndOtherErrorsPass) {
  BatchBudget budget;
  EXPECT_THROW(for_each_batch({5}, budget, [](const auto&) { throw OutOfMemory("full"); }),
               OutOfMemory);
  EXPECT_THROW(for_each_batch({5, 6}, budget, [](const auto&) { throw std::logic_error("bug"); }),
               std::logic_error);
}

}  // namespace
}  // namespace tutti::speech
