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
    const BatchBudget budget{
        1 + rng.below(20),
        rng.below(2) == 0 ? 0 : static_cast<std::int64_t>(100 + rng.below(1000))};
    const auto memory = static_cast<std::int64_t>(100 + rng.below(1500));
    std::vector<int> done(lengths.size(), 0);
    int failures = 0;
    for_each_batch(lengths, budget, [&](const std::vector<std::size_t>& items) {
      ASSERT_FALSE(items.empty());
      ASSERT_LE(items.size(), budget.max_items);
      std::int64_t longest = 0;
      for (std::size_t item : items) longest = std::max(longest, lengths[item]);
      const std::int64_t total = longest * static_cast<std::int64_t>(items.size());
      if (budget.max_total > 0 && items.size() > 1) {
        ASSERT_LE(total, budget.max_total);
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
  for_each_batch({3, 9, 5}, {.max_items = 2}, [&](const std::vector<std::size_t>& items) {
    order.insert(order.end(), items.begin(), items.end());
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{1, 2, 0}));
}

TEST(Batching, OneItemThatDoesNotFitIsReportedAndOtherErrorsPass) {
  EXPECT_THROW(for_each_batch({5}, {}, [](const auto&) { throw OutOfMemory("full"); }),
               OutOfMemory);
  EXPECT_THROW(for_each_batch({5, 6}, {}, [](const auto&) { throw std::logic_error("bug"); }),
               std::logic_error);
}

}  // namespace
}  // namespace tutti::speech
