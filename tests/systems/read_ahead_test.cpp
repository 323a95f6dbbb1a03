#include "tutti/systems/inference/read_ahead.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "tutti/core/error.h"

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

}  // namespace
}  // namespace tutti::systems
