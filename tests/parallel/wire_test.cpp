#include "tutti/parallel/wire/wire.h"

#include <gtest/gtest.h>

#include "tutti/core/random.h"

namespace tutti::parallel::wire {
namespace {

TEST(Wire, ResultsComeBackAsTheyWere) {
  const std::string bytes = encode(
      Results{7,
              {{1, ItemStatus::kOk, 900, "{\"a\":1}", 1'700'000'000'000'000},
               {2, ItemStatus::kFailed, 0, "no", 1'700'000'000'000'950},
               {3, ItemStatus::kOk, 0, "", 1'600'000'000'000'000}}});  // a clock was set back
  const auto message = decode(bytes);
  ASSERT_TRUE(message);
  const auto& results = std::get<Results>(*message);
  EXPECT_EQ(results.lease, 7U);
  ASSERT_EQ(results.records.size(), 3U);
  EXPECT_EQ(results.records[0].payload, "{\"a\":1}");
  EXPECT_EQ(results.records[1].status, ItemStatus::kFailed);
  EXPECT_EQ(results.records[0].start_us, 1'700'000'000'000'000U);
  EXPECT_EQ(results.records[1].start_us, 1'700'000'000'000'950U);
  EXPECT_EQ(results.records[2].start_us, 1'600'000'000'000'000U);
}

TEST(Wire, EveryMessageSurvivesARoundTrip) {
  const std::vector<Message> all = {Hello{1, 2, "h"},
                                    Heartbeat{3, 4, 1},
                                    EnvReady{5, 6},
                                    EnvFailed{1, 2, "e"},
                                    Released{1, {{2, 3}}},
                                    Trouble{TroubleKind::kMemory, 1, 2, "t"},
                                    Bye{"b"},
                                    Welcome{9},
                                    Job{1, "{}"},
                                    Lease{1, 2, {{0, 5}, {9, 1}}},
                                    Recall{1, 2},
                                    Ping{},
                                    Stop{}};
  for (const Message& message : all) {
    const std::string bytes = encode(message);
    const auto back = decode(bytes);
    ASSERT_TRUE(back);
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(encode(*back), bytes);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut)
      EXPECT_FALSE(decode(std::string_view(bytes).substr(0, cut)));
    EXPECT_FALSE(decode(bytes + "x"));
  }
}

TEST(Wire, OtherVersionsAndHugeCountsAreRefused) {
  std::string bytes = encode(Ping{});
  bytes[2] = 99;
  EXPECT_FALSE(decode(bytes));
  EXPECT_FALSE(decode(encode(Lease{1, 1, {{0, kMaxLeaseItems + 1}}})));
  EXPECT_FALSE(decode(encode(Lease{1, 1, {{~0ULL, 2}}})));
  EXPECT_FALSE(decode(std::string("TU\x03\x05\x01\xff\xff\xff\xff\x0f", 10)));
}

TEST(Wire, RandomBytesNeverCrash) {
  Random random({42});
  for (int i = 0; i < 200000; ++i) {
    std::string bytes = {'T', 'U', static_cast<char>(kVersion)};
    for (std::uint64_t n = random.below(40); n > 0; --n)
      bytes.push_back(static_cast<char>(random()));
    decode(bytes);
  }
}

}  // namespace
}  // namespace tutti::parallel::wire
