// How fast items are done lately, for rates and ETAs: items over seconds in which somebody worked,
// both of the last minute, or of the last twentieth of a long run. So neither the wait in a queue nor
// what was fast an hour ago is in it. It reaches further back where fewer than 20 items would be in it.
// Internal to the room.
//
//   RecentRate rate;
//   rate.add(12.5, 40, true);   // 12.5 s after the run's begin 40 items are done, and somebody works
//   rate.per_second();
#pragma once

#include <cstdint>
#include <deque>

namespace tutti::parallel {

class RecentRate {
 public:
  // REQUIRES: neither number ever shrinks. `working`: a worker was ready since the last call.
  void add(double seconds, std::uint64_t done, bool working);
  double per_second() const;  // 0: not known yet
  double window_s() const { return work_s_ - samples_.front().work_s; }

 private:
  struct Sample {
    double work_s = 0;
    std::uint64_t done = 0;
  };

  double seconds_ = 0;
  double work_s_ = 0;
  std::uint64_t done_ = 0;
  std::deque<Sample> samples_{Sample{}};  // at most one a second, and one per change
};

}  // namespace tutti::parallel
