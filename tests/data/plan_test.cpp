#include "tutti/data/batching/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/data/fixtures.h"
#include "tutti/core/random.h"
#include "tutti/data/batching/plan_cache.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

LengthTable lengths(std::size_t n, std::uint64_t seed = 1) {
  Random random({seed});
  LengthTable table;
  auto& column = table.columns.emplace_back();
  for (std::size_t i = 0; i < n; ++i) {
    table.item.push_back(static_cast<std::uint32_t>(i));
    column.length.push_back(1 + static_cast<std::uint32_t>(random.below(1000)));
    column.width.push_back(80);
  }
  return table;
}

std::vector<BatchSettings> every_sampler() {
  return {{.type = "bucketed", .batch_bins = 400'000},
          {.type = "bucketed", .batch_size = 6},
          {.type = "unsorted", .batch_size = 5},
          {.type = "unsorted", .batch_bins = 400'000},
          {.type = "sorted", .batch_size = 5},
          {.type = "folded", .batch_size = 12, .fold_lengths = {200}},
          {.type = "length", .batch_bins = 4000},
          {.type = "numel", .batch_bins = 300'000, .min_batch_size = 2},
          {.type = "sequential", .batch_size = 3}};
}

// How often each utterance is in the plan.
std::map<std::uint32_t, int> counts(const EpochPlan& plan) {
  std::map<std::uint32_t, int> count;
  for (std::uint64_t g = 0; g < plan.num_groups(); ++g)
    for (int r = 0; r < plan.world(); ++r)
      for (const auto item : plan.batch(g, r)) ++count[item];
  return count;
}

TEST(BatchPlan, EverySamplerGivesEachUtteranceOnceAtAnyWorldSize) {
  for (const BatchSettings& batches : every_sampler())
    for (const int world : {1, 2, 3, 7, 8, 16})
      for (const std::size_t n : {5, 97, 1000})
        for (const bool shuffle : {false, true})
          for (const bool global : {false, true}) {
            const BatchPlan plan({.batches = batches,
                                  .shuffle = shuffle,
                                  .global_batches = global,
                                  .seed = 3,
                                  .world = world},
                                 lengths(n));
            const EpochPlan epoch = plan.epoch(2);
            const auto seen = counts(epoch);
            EXPECT_EQ(seen.size(), n) << batches.type << " world " << world;
            for (const auto& [item, times] : seen) EXPECT_EQ(times, 1);
            EXPECT_EQ(epoch.batches().size(),
                      epoch.num_groups() * static_cast<std::uint64_t>(world));
            // An empty batch only where utterances run out.
            if (global) continue;
            for (std::uint64_t g = 0; g + 1 < epoch.num_groups() && !shuffle; ++g)
              for (int r = 0; r < world; ++r) EXPECT_FALSE(epoch.batch(g, r).empty());
          }
}

TEST(BatchPlan, CuttingBatchesToFillTheLastGroupKeepsBudgets) {
  const LengthTable table = lengths(500);
  for (const int world : {3, 8}) {
    const BatchPlan plan({.batches = {.type = "bucketed", .batch_bins = 400'000}, .world = world},
                         table);
    const BatchPlan in_order(
        {.batches = {.type = "unsorted", .batch_bins = 400'000}, .world = world}, table);
    for (const BatchPlan* one : {&plan, &in_order}) {
      const EpochPlan epoch = one->epoch(0);
      for (std::size_t b = 0; b < epoch.batches().size(); ++b)
        EXPECT_LE(padded_bins(table, epoch.batches()[b]), 400'000U);
    }
  }
}

TEST(BatchPlan, IsAPureFunctionOfItsInputs) {
  const PlanSettings base{
      .batches = {.batch_bins = 400'000}, .shuffle = true, .seed = 3, .world = 4};
  const BatchPlan plan(base, lengths(800));
  const std::uint64_t hash = plan.epoch(5).hash();
  EXPECT_EQ(hash, BatchPlan(base, lengths(800)).epoch(5).hash());
  EXPECT_NE(hash, plan.epoch(6).hash());
  PlanSettings other = base;
  other.seed = 4;
  EXPECT_NE(hash, BatchPlan(other, lengths(800)).epoch(5).hash());
  EXPECT_NE(BatchPlan(other, lengths(800)).fingerprint(), plan.fingerprint());
  other = base;
  other.world = 2;
  EXPECT_NE(hash, BatchPlan(other, lengths(800)).epoch(5).hash());
  EXPECT_NE(plan.fingerprint(), BatchPlan(base, lengths(801)).fingerprint());
}

TEST(BatchPlan, ShuffleMovesWholeGroupsSoRanksStayAligned) {
  PlanSettings settings{.batches = {.type = "sorted", .batch_size = 4}, .world = 4};
  const EpochPlan straight = BatchPlan(settings, lengths(160)).epoch(0);
  settings.shuffle = true;
  const EpochPlan shuffled = BatchPlan(settings, lengths(160)).epoch(0);
  std::multiset<std::vector<std::uint32_t>> a, b;
  const auto group = [](const EpochPlan& plan, std::uint64_t g) {
    std::vector<std::uint32_t> items;
    for (int r = 0; r < 4; ++r)
      items.insert(items.end(), plan.batch(g, r).begin(), plan.batch(g, r).end());
    return items;
  };
  bool moved = false;
  for (std::uint64_t g = 0; g < straight.num_groups(); ++g) {
    a.insert(group(straight, g));
    b.insert(group(shuffled, g));
    moved |= group(straight, g) != group(shuffled, g);
  }
  EXPECT_EQ(a, b);
  EXPECT_TRUE(moved);
}

TEST(BatchPlan, WindowsOfNumItersJoinIntoFullPasses) {
  for (const std::int64_t window : {3, 7, 1000}) {
    const BatchPlan full(
        {.batches = {.batch_bins = 400'000}, .shuffle = true, .seed = 1, .world = 2}, lengths(300));
    const BatchPlan windows({.batches = {.batch_bins = 400'000},
                             .shuffle = true,
                             .num_iters_per_epoch = window,
                             .seed = 1,
                             .world = 2},
                            lengths(300));
    const std::uint64_t groups = full.epoch(0).num_groups();
    // The stream of windows is the stream of passes.
    for (std::uint64_t e = 0; e < 5; ++e) {
      const EpochPlan part = windows.epoch(e);
      ASSERT_EQ(part.num_groups(), static_cast<std::uint64_t>(window));
      for (std::uint64_t g = 0; g < part.num_groups(); ++g) {
        const std::uint64_t at = e * static_cast<std::uint64_t>(window) + g;
        const EpochPlan pass = full.epoch(at / groups);
        for (int r = 0; r < 2; ++r) {
          const auto got = part.batch(g, r);
          const auto want = pass.batch(at % groups, r);
          ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end()))
              << e << " " << g;
        }
        if (window == 1000 && g > 2 * groups) break;
      }
    }
  }
}

TEST(BatchPlan, CategorySamplersWorkWithWindowsAndWorlds) {
  Categories categories;
  categories.rows.resize(4);
  for (std::uint32_t row = 0; row < 400; ++row) categories.rows[row % 4].push_back(row);
  for (const BatchSettings& batches : {BatchSettings{.type = "catbel", .batch_size = 8},
                                       BatchSettings{.type = "catpow", .batch_bins = 4000}}) {
    const BatchPlan plan(
        {.batches = batches, .shuffle = true, .num_iters_per_epoch = 50, .world = 4}, lengths(400),
        categories);
    EXPECT_EQ(plan.epoch(0).num_groups(), 50U);
    EXPECT_EQ(plan.epoch(3).hash(), plan.epoch(3).hash());
    EXPECT_NE(plan.epoch(3).hash(), plan.epoch(4).hash());
  }
}

TEST(BatchPlan, WhatIsLeftOfAnEpochGoesToAnyNumberOfRanksOnce) {
  for (const bool global : {false, true}) {
    EpochPlan plan = BatchPlan({.batches = {.type = "unsorted", .batch_size = 5},
                                .shuffle = true,
                                .global_batches = global,
                                .world = 2},
                               lengths(101))
                         .epoch(3);
    std::vector<std::uint32_t> seen;
    const auto take = [&](std::uint64_t groups) {
      for (std::uint64_t g = 0; g < groups; ++g)
        for (int r = 0; r < plan.world(); ++r)
          for (const auto item : plan.batch(g, r)) seen.push_back(item);
    };
    for (const int world : {3, 1, 4, 2}) {
      take(2);
      plan = deal_again(plan, 2, world, global);
      EXPECT_EQ(plan.world(), world);
    }
    take(plan.num_groups());
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), 101U);
    for (std::uint32_t i = 0; i < 101; ++i) EXPECT_EQ(seen[i], i);
  }
}

TEST(Sharding, RotationCoversEveryUtteranceExactlyOnce) {
  const int world = 2 * 8;
  for (const int multiple : {1, 2, 3, 5}) {
    const int total = world * multiple;
    for (const BatchSettings& batches : every_sampler()) {
      const BatchPlan plan(
          {.batches = batches, .shuffle = true, .sharding = Sharding{total, world}, .world = world},
          lengths(1000));
      for (const std::uint64_t start : {0, multiple}) {
        std::map<std::uint32_t, int> seen;
        for (std::uint64_t e = start; e < start + static_cast<std::uint64_t>(multiple); ++e) {
          const EpochPlan epoch = plan.epoch(e);
          for (std::uint64_t g = 0; g < epoch.num_groups(); ++g)
            for (int r = 0; r < world; ++r)
              for (const auto item : epoch.batch(g, r)) {
                ++seen[item];
                // The seeds' formula.
                EXPECT_EQ(static_cast<int>(item) % total,
                          static_cast<int>((e * world + static_cast<std::uint64_t>(r)) %
                                           static_cast<std::uint64_t>(total)));
              }
        }
        EXPECT_EQ(seen.size(), 1000U) << batches.type << " " << total;
        for (const auto& [item, times] : seen) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(Sharding, WorksWithWindowsAndFewerUtterancesThanShards) {
  const BatchPlan windows({.batches = {.batch_size = 3},
                           .shuffle = true,
                           .num_iters_per_epoch = 5,
                           .sharding = Sharding{8, 4},
                           .world = 4},
                          lengths(203));
  std::map<std::uint32_t, int> seen;
  const std::uint64_t total =
      BatchPlan({.batches = {.batch_size = 3}, .sharding = Sharding{8, 4}, .world = 4},
                lengths(203))
          .epoch(0)
          .num_groups() +
      BatchPlan({.batches = {.batch_size = 3}, .sharding = Sharding{8, 4}, .world = 4},
                lengths(203))
          .epoch(1)
          .num_groups();
  std::uint64_t groups = 0;
  for (std::uint64_t e = 0; groups < total; ++e) {
    const EpochPlan part = windows.epoch(e);
    for (std::uint64_t g = 0; g < part.num_groups() && groups < total; ++g, ++groups)
      for (int r = 0; r < 4; ++r)
        for (const auto item : part.batch(g, r)) ++seen[item];
  }
  EXPECT_EQ(seen.size(), 203U);
  for (const auto& [item, times] : seen) EXPECT_EQ(times, 1);
  const BatchPlan few({.batches = {.batch_size = 3}, .sharding = Sharding{8, 4}, .world = 4},
                      lengths(3));
  EXPECT_EQ(few.epoch(0).num_items() + few.epoch(1).num_items(), 3U);
}

TEST(Sharding, MistakesShowTheArithmetic) {
  const auto message = [](Sharding sharding, int world) {
    try {
      const BatchPlan plan({.batches = {.batch_size = 1}, .sharding = sharding, .world = world},
                           lengths(10));
      return std::string("no error");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(message({16, 8}, 16),
              HasSubstr("dist_world_size: got 8, expected the world size of this run = 16"));
  EXPECT_THAT(
      message({10, 8}, 8),
      HasSubstr(
          "total_shards: got 10, expected a multiple of dist_world_size = 8 (10 = 1 x 8 + 2)"));
  EXPECT_THAT(message({10, 8}, 8), HasSubstr("set total_shards: 16"));
}

TEST(BatchPlan, ReadsShapeFilesAndFiltersByLength) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 50; ++i)
    text += "u" + std::to_string(i) + " " + std::to_string(10 + i) + ",80\n";
  write_file_atomic(folder.path() / "shape", text);
  const auto dataset = std::make_shared<testing::FakeDataset>(50);
  const BatchPlan plan({.batches = {.batch_bins = 50'000,
                                    .shape_files = {(folder.path() / "shape").string()},
                                    .min_length = 15,
                                    .max_length = 49}},
                       dataset);
  const auto seen = counts(plan.epoch(0));
  EXPECT_EQ(seen.size(), 35U);
  EXPECT_EQ(seen.begin()->first, 5U);
  EXPECT_EQ(plan.num_filtered(), 15U);
}

TEST(PlanCache, GivesTheSamePlanAndSurvivesDamage) {
  TempFolder folder;
  PlanSettings settings{.batches = {.batch_bins = 400'000}, .shuffle = true, .seed = 9, .world = 4};
  const std::uint64_t expected = BatchPlan(settings, lengths(500)).epoch(1).hash();
  settings.cache_folder = folder.path() / "plans";
  const BatchPlan plan(settings, lengths(500));
  EXPECT_EQ(plan.epoch(1).hash(), expected);
  const auto file = PlanCache(settings.cache_folder).file_of(plan.fingerprint(), 1);
  ASSERT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(BatchPlan(settings, lengths(500)).epoch(1).hash(), expected);
  const std::string good = read_file(file);
  // Flip each part of the file, and cut it: never a wrong plan.
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{9}, std::size_t{17}, std::size_t{40}, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write_file_atomic(file, bad);
    EXPECT_EQ(plan.epoch(1).hash(), expected);
  }
  write_file_atomic(file, good.substr(0, good.size() / 2));
  EXPECT_EQ(plan.epoch(1).hash(), expected);
  // And a cache that cannot be written is no reason to stop.
  settings.cache_folder = "/proc/no/such/place";
  EXPECT_EQ(BatchPlan(settings, lengths(500)).epoch(1).hash(), expected);
}

TEST(BatchPlan, PlansAMillionUtterances) {
  const BatchPlan plan({.batches = {.batch_bins = 4'000'000}, .shuffle = true, .world = 16},
                       lengths(1'000'000));
  const EpochPlan epoch = plan.epoch(0);
  EXPECT_EQ(epoch.num_items(), 1'000'000U);
}

}  // namespace
}  // namespace tutti::data
