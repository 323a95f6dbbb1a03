#include "tutti/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/data/fixtures.h"
#include "tutti/core/random.h"

namespace tutti::data {
namespace {

using testing::FakeDataset;
using ::testing::HasSubstr;

EpochPlan plan_of(const std::shared_ptr<const Dataset>& dataset, int world = 1,
                  std::uint64_t epoch = 0) {
  return BatchPlan({.batches = {.batch_size = 4}, .shuffle = true, .seed = 5, .world = world},
                   dataset)
      .epoch(epoch);
}

// What a run sees: ids and content of each batch, in order.
std::vector<std::string> run(Loader& loader) {
  std::vector<std::string> seen;
  while (const auto batch = loader.next()) {
    std::string text = std::to_string(batch->position.group) + ":";
    for (const auto& uid : batch->uids) text += " " + uid;
    if (batch->weight() > 0) {
      const Array& speech = batch->arrays.at("speech");
      for (std::int64_t i = 0; i < speech.size(); ++i)
        text += "," + std::to_string(speech.data<float>()[i]);
    }
    seen.push_back(text);
  }
  return seen;
}

void add_keyed_noise(Sample& sample, std::uint64_t epoch) {
  Random random({7, epoch, hash64(sample.uid)});
  for (float& x : sample.speech) x += static_cast<float>(random.uniform());
}

TEST(Loader, GivesTheSameBatchesForAnyNumberOfThreads) {
  const auto dataset = std::make_shared<FakeDataset>(203);
  std::vector<std::string> expected;
  for (const int workers : {0, 1, 2, 5}) {
    Loader loader({.num_workers = workers, .prefetch = 3}, dataset, add_keyed_noise,
                  plan_of(dataset), 0, {});
    const auto seen = run(loader);
    EXPECT_EQ(seen.size(), loader.num_groups());
    if (expected.empty()) expected = seen;
    EXPECT_EQ(seen, expected) << workers << " workers";
  }
}

TEST(Loader, ResumedMidEpochEqualsNeverStopped) {
  const auto dataset = std::make_shared<FakeDataset>(150);
  for (const int rank : {0, 2}) {
    Loader whole({.num_workers = 2}, dataset, add_keyed_noise, plan_of(dataset, 3, 4), rank,
                 {4, 0});
    const auto expected = run(whole);
    std::vector<std::string> seen;
    PlanPosition position{4, 0};
    {
      Loader first({.num_workers = 2}, dataset, add_keyed_noise, plan_of(dataset, 3, 4), rank,
                   position);
      for (int i = 0; i < 5; ++i) {
        auto batch = first.next();
        ASSERT_TRUE(batch);
      }
      position = first.position();
      EXPECT_EQ(position, (PlanPosition{4, 5}));
    }
    Loader second({.num_workers = 3}, dataset, add_keyed_noise, plan_of(dataset, 3, 4), rank,
                  position);
    const auto rest = run(second);
    EXPECT_EQ(rest, std::vector<std::string>(expected.begin() + 5, expected.end()));
  }
}

TEST(Loader, AFailingUtteranceStopsTheRunByName) {
  const auto dataset = std::make_shared<FakeDataset>(40);
  dataset->bad_ = {17};
  for (const int workers : {0, 2}) {
    Loader loader({.num_workers = workers}, dataset, {}, plan_of(dataset), 0, {});
    try {
      run(loader);
      FAIL() << "no error";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("u17: damaged"));
    }
  }
}

TEST(Loader, SkipsBadUtterancesWithAReport) {
  const auto dataset = std::make_shared<FakeDataset>(40);
  dataset->bad_ = {3, 17};
  Loader loader({.num_workers = 2, .on_bad = OnBad::kSkip}, dataset, {}, plan_of(dataset), 0, {});
  std::int64_t total = 0;
  while (const auto batch = loader.next()) total += batch->weight();
  EXPECT_EQ(total, 38);
  const auto bad = loader.bad();
  ASSERT_EQ(bad.size(), 2U);
  EXPECT_THAT(bad[0].reason, HasSubstr("damaged"));
}

TEST(Loader, ErrorsOfPreparationNameTheUtterance) {
  const auto dataset = std::make_shared<FakeDataset>(8);
  Loader loader({.num_workers = 2}, dataset,
                [](Sample& sample, std::uint64_t) {
                  if (sample.uid == "u5") throw std::runtime_error("no such token");
                },
                plan_of(dataset), 0, {});
  try {
    run(loader);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("u5: no such token"));
  }
}

TEST(Loader, HoldsNoMoreThanPrefetchBatchesAhead) {
  const auto dataset = std::make_shared<FakeDataset>(400);
  std::atomic<int> prepared{0};
  Loader loader({.num_workers = 2, .prefetch = 3}, dataset,
                [&](Sample&, std::uint64_t) { ++prepared; }, plan_of(dataset), 0, {});
  for (int i = 1; i <= 20; ++i) {
    ASSERT_TRUE(loader.next());
    EXPECT_LE(prepared.load(), (i + 3) * 4);
  }
}

TEST(Loader, StopsCleanlyWhenNobodyReads) {
  const auto dataset = std::make_shared<FakeDataset>(4000);
  for (int i = 0; i < 20; ++i) {
    Loader loader({.num_workers = 4, .prefetch = 2}, dataset, {}, plan_of(dataset), 0, {});
    if (i % 2 == 0) loader.next();
  }
}

TEST(Loader, EmptyBatchesKeepRanksInStep) {
  const auto dataset = std::make_shared<FakeDataset>(3);
  for (int rank = 0; rank < 8; ++rank) {
    Loader loader({.num_workers = 1}, dataset, {}, plan_of(dataset, 8), rank, {});
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    EXPECT_LE(batch->weight(), 1);
    EXPECT_EQ(batch->arrays.empty(), batch->weight() == 0);
    EXPECT_FALSE(loader.next());
  }
}

TEST(Loader, UsesTheAllocatorItIsGiven) {
  const auto dataset = std::make_shared<FakeDataset>(20);
  std::atomic<int> calls{0};
  LoaderSettings settings{.num_workers = 2};
  settings.allocate = [&](std::size_t n) { return ++calls, allocate_plain(n); };
  Loader loader(settings, dataset, {}, plan_of(dataset), 0, {});
  run(loader);
  EXPECT_EQ(calls.load(), 5 * 2);  // speech and its lengths
}

// A model that learns from texts gets one, also where all of a batch are empty.
TEST(Collate, EmptyTextsHaveTheirLengths) {
  std::vector<Sample> samples(2);
  for (Sample& sample : samples) sample.is_tokenized = true;
  const Batch batch = collate(samples, {});
  EXPECT_EQ(batch.arrays.at("text").shape, (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(batch.arrays.at("text_lengths").data<std::int64_t>()[1], 0);
}

TEST(Collate, PadsAndCountsLikeEspnet) {
  std::vector<Sample> samples(2);
  samples[0].uid = "a";
  samples[0].speech = {1, 2, 3};
  samples[0].tokens = {4};
  samples[0].extra["feats"] = Array::make(DType::kFloat32, {2, 2});
  std::fill_n(samples[0].extra["feats"].data<float>(), 4, 7.0F);
  samples[1].uid = "b";
  samples[1].speech = {5};
  samples[1].tokens = {6, 7};
  samples[1].extra["feats"] = Array::make(DType::kFloat32, {1, 2});
  std::fill_n(samples[1].extra["feats"].data<float>(), 2, 8.0F);
  const Batch batch = collate(samples, {.float_pad_value = 0.5, .int_pad_value = -1});
  const Array& speech = batch.arrays.at("speech");
  EXPECT_EQ(speech.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::vector<float>(speech.data<float>(), speech.data<float>() + 6),
            (std::vector<float>{1, 2, 3, 5, 0.5, 0.5}));
  EXPECT_EQ(batch.arrays.at("speech_lengths").data<std::int64_t>()[1], 1);
  const Array& text = batch.arrays.at("text");
  EXPECT_EQ(std::vector<std::int64_t>(text.data<std::int64_t>(), text.data<std::int64_t>() + 4),
            (std::vector<std::int64_t>{4, -1, 6, 7}));
  EXPECT_EQ(batch.arrays.at("feats").shape, (std::vector<std::int64_t>{2, 2, 2}));
  EXPECT_EQ(batch.arrays.at("feats").data<float>()[6], 0.5F);

  samples[1].extra["feats"] = Array::make(DType::kFloat32, {1, 3});
  EXPECT_THROW(collate(samples, {}), DataError);
}

}  // namespace
}  // namespace tutti::data
