#include "tutti/parallel/run/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tutti/core/random.h"

namespace tutti::parallel {
namespace {

std::vector<std::uint64_t> items_of(const LeaseOrder& lease) {
  std::vector<std::uint64_t> items;
  for (const IndexRange& range : lease.ranges)
    for (std::uint64_t i = 0; i < range.count; ++i) items.push_back(range.first + i);
  return items;
}

TEST(Schedule, LeasesGrowWithFastItemsAndShrinkToOneAtTheEnd) {
  Schedule schedule({{0, 100000}}, 100000, {});
  std::vector<std::size_t> sizes;
  while (!schedule.done()) {
    const auto lease = schedule.next(0, 2);
    ASSERT_TRUE(lease);
    sizes.push_back(items_of(*lease).size());
    for (const auto index : items_of(*lease))
      ASSERT_EQ(schedule.report(lease->id, index, 1e-6, 3), Verdict::kCounted);
  }
  EXPECT_EQ(sizes.front(), 1U);
  EXPECT_GT(*std::max_element(sizes.begin(), sizes.end()), 4000U);
  EXPECT_EQ(sizes.back(), 1U);
}

TEST(Schedule, SlowItemsAreLeasedOneByOne) {
  Schedule schedule({{0, 100}}, 100, {});
  for (int i = 0; i < 50; ++i) {
    const auto lease = schedule.next(0, 2);
    ASSERT_EQ(items_of(*lease).size(), 1U);
    schedule.report(lease->id, items_of(*lease)[0], 1.0, 3);
  }
}

TEST(Schedule, ResultsOfALostLeaseAreStale) {
  Schedule schedule({{0, 1}}, 1, {});
  const auto first = schedule.next(0, 1);
  schedule.lose(0, std::nullopt, false);
  const auto second = schedule.next(1, 1);
  EXPECT_EQ(schedule.report(first->id, 0, 0, 0), Verdict::kStale);
  EXPECT_EQ(schedule.report(second->id, 0, 0, 0), Verdict::kCounted);
  EXPECT_TRUE(schedule.done());
}

TEST(Schedule, OutOfOrderReportsBreakTheProtocolAndCountNothing) {
  Schedule schedule({{0, 10}}, 10, {.first_guess_seconds = 1e-6});
  const auto lease = schedule.next(0, 1);
  ASSERT_GT(items_of(*lease).size(), 1U);
  EXPECT_EQ(schedule.report(lease->id, 1, 0, 0), Verdict::kBroken);
  EXPECT_EQ(schedule.num_unfinished(), 10U);
}

TEST(Schedule, OnlyTheItemThatWasRunningIsBlamed) {
  Schedule schedule({{0, 10}}, 10, {.max_retries = 2, .first_guess_seconds = 1e-6});
  auto lease = schedule.next(0, 1);
  const Loss loss = schedule.lose(0, RunningItem{lease->id, 1});
  EXPECT_EQ(loss.suspect, 1U);
  EXPECT_EQ(loss.strikes, 1);
  EXPECT_FALSE(loss.quarantined);
  // The suspect now runs alone.
  lease = schedule.next(1, 1);
  EXPECT_EQ(items_of(*lease), std::vector<std::uint64_t>{1});
  const Loss second = schedule.lose(1, RunningItem{lease->id, 1});
  EXPECT_TRUE(second.quarantined);
  EXPECT_EQ(schedule.num_unfinished(), 9U);
}

TEST(Schedule, AnItemOfTheSecondLeaseIsBlamedWhenThatIsWhereTheWorkerWas) {
  Schedule schedule({{0, 100}}, 100, {.first_guess_seconds = 1e-6});
  const auto first = schedule.next(0, 1);
  const auto second = schedule.next(0, 1);
  const std::uint64_t index = items_of(*second)[1];
  const Loss loss = schedule.lose(0, RunningItem{second->id, index});
  EXPECT_EQ(loss.suspect, index);
  EXPECT_EQ(loss.returned, items_of(*first).size() + items_of(*second).size());
}

// The connection to a dying worker breaks before its death is known.
TEST(Schedule, ALeaseThatCouldNotBeSentGoesBackAloneAndTheRunningItemIsStillBlamed) {
  Schedule schedule({{0, 10}}, 10, {.max_retries = 3, .first_guess_seconds = 1e-6});
  const auto first = schedule.next(0, 1);
  const auto unsent = schedule.next(0, 1);
  schedule.unsent(unsent->id);
  EXPECT_EQ(schedule.num_leases(0), 1U);
  const std::uint64_t index = items_of(*first)[1];
  EXPECT_EQ(schedule.lose(0, RunningItem{first->id, index}).suspect, index);
  // A suspect that could not be sent stays one: it still runs alone.
  const auto alone = schedule.next(1, 1);
  schedule.unsent(alone->id);
  EXPECT_EQ(items_of(*schedule.next(2, 1)), std::vector<std::uint64_t>{index});
  std::set<std::uint64_t> rest;
  while (const auto lease = schedule.next(3, 1))
    for (const std::uint64_t item : items_of(*lease)) EXPECT_TRUE(rest.insert(item).second);
  EXPECT_EQ(rest.size(), 9U);
}

TEST(Schedule, WithoutKnowingTheItemNobodyIsBlamedUntilOneIsCaughtAlone) {
  Schedule schedule({{0, 4}}, 4, {.max_retries = 1, .first_guess_seconds = 1e-6});
  auto lease = schedule.next(0, 1);
  ASSERT_EQ(items_of(*lease).size(), 2U);
  EXPECT_FALSE(schedule.lose(0, std::nullopt).suspect);
  lease = schedule.next(1, 1);
  EXPECT_EQ(items_of(*lease), std::vector<std::uint64_t>{0});
  EXPECT_EQ(schedule.lose(1, std::nullopt).suspect, 0U);
}

// A worker that was reading the next item may have died of that one.
TEST(Schedule, OneOfSeveralIsCaughtAlone) {
  Schedule schedule({{0, 2}}, 2, {.max_retries = 1, .first_guess_seconds = 1});
  auto lease = schedule.next(0, 1);
  schedule.next(0, 1);
  ASSERT_EQ(items_of(*lease), std::vector<std::uint64_t>{0});
  EXPECT_FALSE(schedule.lose(0, RunningItem{lease->id, kOneOfSeveral}).suspect);
  lease = schedule.next(1, 1);
  EXPECT_EQ(items_of(*lease), std::vector<std::uint64_t>{0});
  EXPECT_FALSE(schedule.next(1, 1)) << "nothing behind it";
  schedule.report(lease->id, 0, 0, 0);
  EXPECT_EQ(items_of(*schedule.next(1, 1)), std::vector<std::uint64_t>{1});
}

TEST(Schedule, RecalledItemsGoToTheIdleWorker) {
  Schedule schedule({{0, 16}}, 16, {.first_guess_seconds = 1e-6});
  const auto lease = schedule.next(0, 1);
  auto items = items_of(*lease);
  while (schedule.next(0, 1)) {
  }
  const auto recall = schedule.recall(1);
  ASSERT_TRUE(recall);
  EXPECT_EQ(recall->worker, 0);
  std::vector<IndexRange> ranges = lease->ranges;
  ASSERT_EQ(recall->lease, lease->id);
  EXPECT_TRUE(schedule.release(recall->lease, wire::cut_tail(ranges, recall->max_items)));
  const auto stolen = schedule.next(1, 1);
  ASSERT_TRUE(stolen);
  EXPECT_EQ(items_of(*stolen)[0], items[items.size() - recall->max_items]);
}

TEST(Schedule, SpeculationCountsAnItemOnce) {
  Schedule schedule({{0, 1}}, 1, {.speculate = true});
  const auto original = schedule.next(0, 2);
  const auto copy = schedule.next(1, 2);
  ASSERT_TRUE(copy);
  EXPECT_EQ(schedule.report(copy->id, 0, 0, 0), Verdict::kCounted);
  EXPECT_TRUE(schedule.done());
  EXPECT_EQ(schedule.report(original->id, 0, 0, 0), Verdict::kDuplicate);
}

// A random story of hand-outs, reports, deaths and recalls: every item is counted exactly once.
TEST(Schedule, EveryItemCountsExactlyOnceWhateverHappens) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random({seed});
    const std::uint64_t n = 1 + random.below(300);
    Schedule schedule(
        {{0, n}}, n,
        {.max_retries = 1000000, .batch_size = 1 + random.below(3), .speculate = seed % 2 == 0});
    struct Held {
      int worker;
      std::vector<std::uint64_t> left;
    };
    std::map<std::uint64_t, Held> leases;
    std::map<std::uint64_t, int> counted;
    int next_worker = 3;
    std::vector<int> workers = {0, 1, 2};
    for (int step = 0; step < 100000 && !schedule.done(); ++step) {
      int& worker = workers[random.below(workers.size())];
      switch (random.below(8)) {
        case 0: {
          std::optional<RunningItem> running;
          for (const auto& [id, held] : leases)
            if (held.worker == worker && random.below(2) == 0)
              running = RunningItem{id, held.left.front()};
          schedule.lose(worker, running, random.below(2) == 0);
          worker = next_worker++;
          break;
        }
        case 1: {
          if (const auto recall = schedule.recall(worker)) {
            auto& left = leases[recall->lease].left;
            const auto take =
                std::min<std::uint64_t>(recall->max_items, left.size() > 0 ? left.size() - 1 : 0);
            std::vector<IndexRange> ranges;
            for (auto i = left.size() - take; i < left.size(); ++i) {
              if (!ranges.empty() && ranges.back().first + ranges.back().count == left[i])
                ++ranges.back().count;
              else
                ranges.push_back({left[i], 1});
            }
            if (schedule.release(recall->lease, ranges)) left.resize(left.size() - take);
          }
          break;
        }
        default:
          if (const auto lease =
                  schedule.num_leases(worker) < 2 ? schedule.next(worker, 3) : std::nullopt)
            leases[lease->id] = {worker, items_of(*lease)};
          for (auto& [id, held] : leases) {
            // Dead workers' leases go on reporting: the fence must drop them.
            if (held.left.empty() || random.below(3) != 0) continue;
            if (schedule.report(id, held.left.front(), 1e-3 * random.uniform(), 10) ==
                Verdict::kCounted)
              ++counted[held.left.front()];
            held.left.erase(held.left.begin());
          }
      }
    }
    ASSERT_TRUE(schedule.done()) << "seed " << seed;
    ASSERT_EQ(counted.size(), n);
    for (const auto& [index, times] : counted) ASSERT_EQ(times, 1) << index;
  }
}

}  // namespace
}  // namespace tutti::parallel
