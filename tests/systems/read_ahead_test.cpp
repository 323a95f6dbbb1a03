#include "tutti/systems/inference/read_ahead.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>

#include "tutti/core/error.h"
#include "tutti/systems/inference/batches_ahead.h"

namespace tutti::systems {
namespace {

using Indices = std::vector<std::uint64_t>;

data::Sample numbered(std::uint64_t index) {
  data::Sample sample;
  sample.uid = std::to_string(index);
  return sample;
}

TEST(ReadAhead, GivesWhatWasAskedForInThatOrderExpectedOrNot) {
  ReadAhead samples(numbered);
  samples.expect(Indices{1, 2, 3, 4});
  for (const Indices& asked : {Indices{2, 1}, Indices{9, 3}, Indices{1}}) {
    const auto got = samples.take(asked);
    ASSERT_EQ(got.size(), asked.size());
    for (std::size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(got[i].uid, std::to_string(asked[i]));
  }
}

TEST(ReadAhead, ReadsOnceWhatIsExpectedTwice) {
  std::array<std::atomic<int>, 8> reads{};
  ReadAhead samples([&](std::uint64_t index) {
    ++reads[index];
    return numbered(index);
  });
  samples.expect(Indices{0, 1, 2, 3});
  samples.take(Indices{0, 1});
  samples.expect(Indices{2, 3, 4, 5});
  samples.take(Indices{2, 3, 4, 5});
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(reads[i], 1) << i;
}

TEST(ReadAhead, ABadFileIsTheErrorOfWhoAsksForIt) {
  ReadAhead samples([](std::uint64_t index) {
    if (index == 2) throw DataError("two is damaged");
    return numbered(index);
  });
  samples.expect(Indices{0, 1, 2, 3});
  EXPECT_EQ(samples.take(Indices{0, 1}).size(), 2U);
  EXPECT_THROW(samples.take(Indices{2, 3}), DataError);
  EXPECT_EQ(samples.take(Indices{3})[0].uid, "3");
}

TEST(ReadAhead, WhatSomebodyHasClaimedIsReadWhateverIsExpectedThen) {
  std::promise<void> go;
  const auto gate = go.get_future().share();
  ReadAhead samples([&](std::uint64_t index) {
    gate.wait();
    return numbered(index);
  });
  const auto claim = samples.claim(Indices{5, 6});
  samples.expect(Indices{7, 8});
  go.set_value();
  EXPECT_EQ(samples.collect(claim)[1].uid, "6");
  EXPECT_EQ(samples.take(Indices{8})[0].uid, "8");
}

// Begins batches, and knows of each whether it was begun when it ran.
class BeginningModel final : public ItemModel {
 public:
  int sample_rate() const override { return 16000; }
  bool can_begin() const override { return true; }
  std::shared_ptr<void> begin(const std::vector<data::Sample>& samples) override {
    ++num_begun;
    if (samples[0].uid == refuses) throw DataError("not this one");
    return std::make_shared<std::string>(samples[0].uid);
  }
  std::vector<Json> run(const std::vector<data::Sample>&, std::shared_ptr<void>) override {
    return {};
  }
  std::atomic<int> num_begun = 0;
  std::string refuses;
};

std::string begun_of(const BatchesAhead::Batch& batch) {
  return batch.begun ? *std::static_pointer_cast<std::string>(batch.begun) : "";
}

TEST(BatchesAhead, EveryBatchButTheFirstIsBegunAndEverySampleReadOnce) {
  std::array<std::atomic<int>, 8> reads{};
  const auto model = std::make_shared<BeginningModel>();
  BatchesAhead batches(
      [&](std::uint64_t index) {
        ++reads[index];
        return numbered(index);
      },
      model);
  for (std::uint64_t first = 0; first < 8; first += 2) {
    Indices coming{first, first + 1};
    if (first + 2 < 8) coming.insert(coming.end(), {first + 2, first + 3});
    batches.expect(coming);
    const auto batch = batches.take(Indices{first, first + 1});
    ASSERT_EQ(batch.samples.size(), 2U);
    EXPECT_EQ(batch.samples[1].uid, std::to_string(first + 1));
    EXPECT_EQ(begun_of(batch), first == 0 ? "" : std::to_string(first));
  }
  EXPECT_EQ(model->num_begun, 3);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(reads[i], 1) << i;
}

TEST(BatchesAhead, AFailedBatchIsTakenItemByItemAndTheNextOneIsStillBegun) {
  const auto model = std::make_shared<BeginningModel>();
  BatchesAhead batches(numbered, model);
  batches.expect(Indices{0, 1, 2, 3});
  batches.take(Indices{0, 1});
  EXPECT_EQ(batches.take(Indices{0}).samples[0].uid, "0");
  EXPECT_EQ(batches.take(Indices{1}).samples[0].uid, "1");
  batches.expect(Indices{2, 3});
  EXPECT_EQ(begun_of(batches.take(Indices{2, 3})), "2");
  EXPECT_EQ(model->num_begun, 1);
}

TEST(BatchesAhead, WhatCannotBeReadOrBegunIsToldToWhoAsks) {
  const auto model = std::make_shared<BeginningModel>();
  model->refuses = "4";
  BatchesAhead batches(
      [](std::uint64_t index) {
        if (index == 3) throw DataError("three is damaged");
        return numbered(index);
      },
      model);
  batches.expect(Indices{0, 1, 2, 3});
  batches.take(Indices{0, 1});
  batches.expect(Indices{2, 3, 4, 5});
  EXPECT_THROW(batches.take(Indices{2, 3}), DataError);
  EXPECT_EQ(batches.take(Indices{2}).samples[0].uid, "2");
  batches.expect(Indices{4, 5, 6, 7});
  const auto batch = batches.take(Indices{4, 5});  // begun in vain, but read
  EXPECT_EQ(batch.samples[1].uid, "5");
  EXPECT_EQ(begun_of(batch), "");
}

TEST(BatchesAhead, BatchesThatComeOtherwiseThanAnnouncedAreReadAndNotBegunForEver) {
  const auto model = std::make_shared<BeginningModel>();
  BatchesAhead batches(numbered, model);
  for (std::uint64_t first = 0; first < 20; first += 2) {
    batches.expect(Indices{first, first + 1, first + 2, first + 3});
    EXPECT_EQ(batches.take(Indices{first}).samples[0].uid, std::to_string(first));
    EXPECT_EQ(batches.take(Indices{first + 1}).samples[0].uid, std::to_string(first + 1));
  }
  EXPECT_LE(model->num_begun, 4);
}

}  // namespace
}  // namespace tutti::systems
