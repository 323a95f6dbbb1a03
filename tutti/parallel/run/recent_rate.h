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
#include <functional>
#include <vector>

#include "tutti/parallel/client.h"

namespace tutti::parallel {

class RecentRate {
 public:
  // REQUIRES: no number ever shrinks. `working`: a worker was ready since the last call. `cost`: of
  // all that is done, for who weighs items.
  void add(double seconds, std::uint64_t done, bool working, double cost = 0);
  double per_second() const;  // 0: not known yet
  double cost_per_second() const;
  double window_s() const { return work_s_ - samples_.front().work_s; }

 private:
  struct Sample {
    double work_s = 0;
    std::uint64_t done = 0;
    double cost = 0;
  };

  double seconds_ = 0;
  double work_s_ = 0;
  std::uint64_t done_ = 0;
  double cost_ = 0;
  std::deque<Sample> samples_{Sample{}};  // at most one a second, and one per change
};

// How long what is left of a run will take. By the items' costs, where all of them have one: the dearest
// come first, and to count items would foretell too much until the end.
//
//   TimeLeft left(plan.work, options.cost);
//   left.done(7);
//   left.tell(report);    // report.eta_s
class TimeLeft {
 public:
  TimeLeft(const std::vector<wire::IndexRange>& work, std::function<double(std::uint64_t)> cost);
  void done(std::uint64_t index);
  void tell(RunReport& report);

 private:
  double cost_of(std::uint64_t index) const { return cost_ ? cost_(index) : 1; }

  std::function<double(std::uint64_t)> cost_;  // empty: all alike
  double total_ = 0;
  double done_ = 0;  // of total_
  std::uint64_t num_done_ = 0;
  RecentRate rate_;
};

}  // namespace tutti::parallel
