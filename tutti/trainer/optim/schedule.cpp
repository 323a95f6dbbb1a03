#include "tutti/trainer/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/core/error.h"

namespace tutti::trainer {

Schedule::Schedule(ScheduleOptions options, double base_lr)
    : options_(std::move(options)), base_lr_(base_lr) {
  const auto& o = options_;
  const bool needs_warmup = o.kind == ScheduleKind::kWarmup || o.kind == ScheduleKind::kNoam;
  if (needs_warmup && o.warmup_steps <= 0)
    throw ConfigError(
        fmt::format("scheduler.warmup_steps: got {}, expected more than 0", o.warmup_steps));
  if (o.kind == ScheduleKind::kPiecewiseLinear) {
    if (o.warmup_steps_list.size() < 2 || o.warmup_steps_list.size() != o.warmup_lr_list.size())
      throw ConfigError(
          fmt::format("scheduler: got {} warmup_steps_list and {} warmup_lr_list entries, expected "
                      "two lists of the same length, at least 2",
                      o.warmup_steps_list.size(), o.warmup_lr_list.size()));
    if (!std::is_sorted(o.warmup_steps_list.begin(), o.warmup_steps_list.end()) ||
        o.warmup_steps_list.back() <= 0)
      throw ConfigError("scheduler.warmup_steps_list: expected increasing numbers");
  }
  if (o.kind == ScheduleKind::kCosineWarmup && o.total_steps <= o.warmup_steps)
    throw ConfigError(
        fmt::format("scheduler.total_steps: got {}, expected more than warmup_steps = {}",
                    o.total_steps, o.warmup_steps));
}

double Schedule::lr(std::int64_t done) const {
  const auto& o = options_;
  const double s = static_cast<double>(done) + 1;
  switch (o.kind) {
    case ScheduleKind::kConstant:
      return base_lr_;
    case ScheduleKind::kWarmup:
      return base_lr_ * std::sqrt(o.warmup_steps) *
             std::min(1 / std::sqrt(s), s * std::pow(o.warmup_steps, -1.5));
    case ScheduleKind::kNoam:
      return base_lr_ / std::sqrt(o.model_size) *
             std::min(1 / std::sqrt(s), s * std::pow(o.warmup_steps, -1.5));
    case ScheduleKind::kPiecewiseLinear: {
      const auto& x = o.warmup_steps_list;
      const auto& y = o.warmup_lr_list;
      // Beyond the list: the inverse square root that joins the last point (when its rate is lr).
      if (s > x.back()) return base_lr_ * std::sqrt(x.back()) / std::sqrt(s);
      if (s <= x.front()) return y.front();
      const auto right =
          static_cast<std::size_t>(std::lower_bound(x.begin(), x.end(), s) - x.begin());
      const double share = (s - x[right - 1]) / (x[right] - x[right - 1]);
      return y[right - 1] + share * (y[right] - y[right - 1]);
    }
    case ScheduleKind::kCosineWarmup: {
      if (s <= o.warmup_steps) return base_lr_ * s / o.warmup_steps;
      const double share = std::min(1.0, (s - o.warmup_steps) / (o.total_steps - o.warmup_steps));
      return o.min_lr + (base_lr_ - o.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * share));
    }
    case ScheduleKind::kPlateau:
      return std::max(o.min_lr, base_lr_ * reduction_);
  }
  return base_lr_;
}

void Schedule::observe(double value) {
  if (options_.kind != ScheduleKind::kPlateau) return;
  const auto& o = options_;
  const bool better = !has_best_ || (o.lower_is_better ? value < best_ * (1 - o.threshold)
                                                       : value > best_ * (1 + o.threshold));
  if (better && std::isfinite(value)) {
    best_ = value;
    has_best_ = true;
    bad_checks_ = 0;
  } else {
    ++bad_checks_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_checks_ = 0;
  }
  if (bad_checks_ > o.patience) {
    reduction_ *= o.factor;
    cooldown_left_ = o.cooldown;
    bad_checks_ = 0;
  }
}

Json Schedule::state() const {
  return {{"reduction", reduction_},
          {"best", best_},
          {"has_best", has_best_},
          {"bad_checks", bad_checks_},
          {"cooldown_left", cooldown_left_}};
}

void Schedule::load(const Json& state) {
  reduction_ = state.value("reduction", reduction_);
  best_ = state.value("best", best_);
  has_best_ = state.value("has_best", has_best_);
  bad_checks_ = state.value("bad_checks", bad_checks_);
  cooldown_left_ = state.value("cooldown_left", cooldown_left_);
}

}  // namespace tutti::trainer
