#include "tutti/parallel/run/recent_rate.h"

#include <algorithm>
#include <utility>

#include "tutti/parallel/wire/ranges.h"

namespace tutti::parallel {
namespace {

constexpr double kWindow = 60;
constexpr double kShare = 0.05;
constexpr std::uint64_t kFewest = 20;

}  // namespace

void RecentRate::add(double seconds, std::uint64_t done, bool working, double cost) {
  if (working) work_s_ += seconds - seconds_;
  seconds_ = seconds;
  done_ = done;
  cost_ = cost;
  if (done > samples_.back().done && work_s_ - samples_.back().work_s >= 1)
    samples_.push_back({work_s_, done, cost});
  while (samples_.size() > 1 &&
         work_s_ - samples_[1].work_s >= std::max(kWindow, kShare * work_s_) &&
         done - samples_[1].done >= kFewest)
    samples_.pop_front();
}

double RecentRate::per_second() const {
  return window_s() > 0 ? static_cast<double>(done_ - samples_.front().done) / window_s() : 0;
}

double RecentRate::cost_per_second() const {
  return window_s() > 0 ? (cost_ - samples_.front().cost) / window_s() : 0;
}

TimeLeft::TimeLeft(const std::vector<wire::IndexRange>& work,
                   std::function<double(std::uint64_t)> cost)
    : cost_(std::move(cost)) {
  bool all_have_one = true;
  for (const wire::IndexRange& range : work)
    for (std::uint64_t i = 0; cost_ && i < range.count; ++i) {
      const double one = cost_(range.first + i);
      all_have_one = all_have_one && one > 0;
      total_ += one;
    }
  if (cost_ && all_have_one) return;
  cost_ = nullptr;
  total_ = static_cast<double>(wire::total_items(work));
}

void TimeLeft::done(std::uint64_t index) {
  done_ += cost_of(index);
  ++num_done_;
}

void TimeLeft::tell(RunReport& report) {
  const bool working = std::any_of(report.workers.begin(), report.workers.end(),
                                   [](const WorkerReport& w) { return w.phase == "ready"; });
  rate_.add(report.seconds, num_done_, working, done_);
  const double rate = rate_.cost_per_second();
  if (rate > 0) report.eta_s = std::max(0.0, total_ - done_) / rate;
}

}  // namespace tutti::parallel
