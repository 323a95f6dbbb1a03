#include "tutti/parallel/run/recent_rate.h"

#include <algorithm>

namespace tutti::parallel {
namespace {

constexpr double kWindow = 60;
constexpr double kShare = 0.05;
constexpr std::uint64_t kFewest = 20;

}  // namespace

void RecentRate::add(double seconds, std::uint64_t done, bool working) {
  if (working) work_s_ += seconds - seconds_;
  seconds_ = seconds;
  done_ = done;
  if (done > samples_.back().done && work_s_ - samples_.back().work_s >= 1)
    samples_.push_back({work_s_, done});
  while (samples_.size() > 1 &&
         work_s_ - samples_[1].work_s >= std::max(kWindow, kShare * work_s_) &&
         done - samples_[1].done >= kFewest)
    samples_.pop_front();
}

double RecentRate::per_second() const {
  return window_s() > 0 ? static_cast<double>(done_ - samples_.front().done) / window_s() : 0;
}

}  // namespace tutti::parallel
