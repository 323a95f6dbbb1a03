// What many workers and long runs do to heartbeats and to the rate that people see.
#include "tutti/parallel/run/pulse.h"

#include <gtest/gtest.h>

#include "tutti/parallel/client.h"
#include "tutti/parallel/run/recent_rate.h"

namespace tutti::parallel {
namespace {

// A healthy worker that has nothing to say but its beats is never silent for too long, however many
// there are, and the driver never hears more beats than it can.
TEST(Pulse, PatienceGrowsWithTheTimeBetweenBeats) {
  const ClientOptions defaults;
  for (const bool local : {true, false})
    for (const int n : {1, 199, 200, 201, 1200, 8000, 10000, 20000}) {
      const Pulse pulse = Pulse::of(n, local, defaults.heartbeat_s, defaults.silence_s);
      EXPECT_GE(pulse.silence_s, 6 * pulse.beat_s) << n;
      EXPECT_LE(n, 400 * pulse.beat_s + 1e-9) << n;
      EXPECT_GE(pulse.silence_s, local ? 3 : 20) << n;
    }
  EXPECT_EQ(Pulse::of(4, true, 0.5, 0).silence_s, 3);
  EXPECT_EQ(Pulse::of(4, false, 0.5, 0).silence_s, 20);
  // Nobody can ask for deaths of the healthy.
  EXPECT_EQ(Pulse::of(4, true, 5, 1).silence_s, 30);
}

TEST(RecentRate, LeavesOutTheWaitInTheQueue) {
  RecentRate rate;
  rate.add(3600, 0, false);  // an hour without a worker
  EXPECT_EQ(rate.per_second(), 0);
  rate.add(3610, 50, true);
  EXPECT_DOUBLE_EQ(rate.per_second(), 5);
}

TEST(RecentRate, FollowsTheLastMinute) {
  RecentRate rate;
  std::uint64_t done = 0;
  for (int s = 1; s <= 100; ++s) rate.add(s, done += 10, true);
  EXPECT_DOUBLE_EQ(rate.per_second(), 10);
  for (int s = 101; s <= 200; ++s) rate.add(s, done += 1, true);
  EXPECT_DOUBLE_EQ(rate.per_second(), 1) << "what was fast before is over";
  EXPECT_DOUBLE_EQ(rate.window_s(), 60);
  rate.add(500, done, false);  // all workers have gone and come back
  rate.add(501, ++done, true);
  EXPECT_DOUBLE_EQ(rate.per_second(), 1);
}

TEST(RecentRate, ReachesBackAsFarAsItTakesWhereItemsAreLong) {
  RecentRate rate;
  for (int s = 1; s <= 3000; ++s) rate.add(s, static_cast<std::uint64_t>(s / 100), true);
  EXPECT_NEAR(rate.per_second(), 0.01, 1e-3);
  EXPECT_GE(rate.window_s(), 1900);
}

// Ten items of 10 s, 9 s, ... 1 s of work, the longest first.
TEST(TimeLeft, IsWeighedByCost) {
  const std::vector<wire::IndexRange> work = {{0, 10}};
  TimeLeft by_cost(work, [](std::uint64_t index) { return 10.0 - static_cast<double>(index); });
  TimeLeft by_items(work, nullptr);
  TimeLeft unknown(work, [](std::uint64_t index) { return index == 3 ? 0.0 : 7.0; });
  RunReport report;
  report.workers = {{.phase = "ready"}};
  by_cost.tell(report);
  EXPECT_FALSE(report.eta_s);
  double seconds = 0;
  const auto eta_s = [&](TimeLeft& left, std::uint64_t index) {
    left.done(index);
    RunReport now = report;
    now.seconds = seconds;
    left.tell(now);
    return now.eta_s.value_or(-1);
  };
  for (std::uint64_t index = 0; index < 10; ++index) {
    seconds += 10.0 - static_cast<double>(index);
    EXPECT_DOUBLE_EQ(eta_s(by_cost, index), 55 - seconds) << index;
    const double alike = seconds / static_cast<double>(index + 1) * static_cast<double>(9 - index);
    EXPECT_DOUBLE_EQ(eta_s(by_items, index), alike) << index;
    EXPECT_DOUBLE_EQ(eta_s(unknown, index), alike) << "not all have a cost: items are counted";
  }
}

}  // namespace
}  // namespace tutti::parallel
