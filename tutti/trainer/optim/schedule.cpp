#include "tutti/trainer/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tutti::trainer {
namespace {

// A function of the number of updates done.
class Curve final : public Schedule {
 public:
  explicit Curve(std::function<double(double done)> lr) : lr_(std::move(lr)) {}
  double lr(std::int64_t done) const override { return lr_(static_cast<double>(done)); }

 private:
  std::function<double(double)> lr_;
};

template <class Function>
std::unique_ptr<Schedule> curve(Function function) {
  return std::make_unique<Curve>(std::move(function));
}

// From `start` to `end` as `share` goes from 0 to 1.
double anneal(bool cosine, double start, double end, double share) {
  if (!cosine) return start + (end - start) * share;
  return end + (start - end) / 2 * (1 + std::cos(std::numbers::pi * share));
}

double warmup_shape(double s, double warmup) {
  return std::min(1 / std::sqrt(s), s * std::pow(warmup, -1.5));
}

class Plateau final : public Schedule {
 public:
  Plateau(config::PlateauLrSettings settings, double base_lr)
      : s_(std::move(settings)), lr_(base_lr) {}
  double lr(std::int64_t) const override { return lr_; }
  bool watches() const override { return true; }

  void observe(double value) override {
    if (is_better(value)) {
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
    if (bad_checks_ <= s_.patience) return;
    const double reduced = std::max(lr_ * s_.factor, s_.min_lr);
    if (lr_ - reduced > s_.eps) lr_ = reduced;
    cooldown_left_ = s_.cooldown;
    bad_checks_ = 0;
  }

  Json state() const override {
    return {{"lr", lr_},
            {"best", best_},
            {"has_best", has_best_},
            {"bad_checks", bad_checks_},
            {"cooldown_left", cooldown_left_}};
  }
  void load(const Json& state) override {
    lr_ = state.value("lr", lr_);
    best_ = state.value("best", best_);
    has_best_ = state.value("has_best", has_best_);
    bad_checks_ = state.value("bad_checks", bad_checks_);
    cooldown_left_ = state.value("cooldown_left", cooldown_left_);
  }

 private:
  bool is_better(double value) const {
    if (!std::isfinite(value)) return false;
    if (!has_best_) return true;
    const double least = s_.threshold_mode == "abs" ? s_.threshold : best_ * s_.threshold;
    return s_.mode == "max" ? value > best_ + least : value < best_ - least;
  }

  config::PlateauLrSettings s_;
  double lr_;
  double best_ = 0;
  bool has_best_ = false;
  int bad_checks_ = 0;
  int cooldown_left_ = 0;
};

// Up to max_lr and down again, the momentum the other way.
class OneCycle final : public Schedule {
 public:
  explicit OneCycle(const config::OneCycleLrSettings& s) : s_(s) {
    const double total = s.total_steps > 0 ? s.total_steps : s.epochs * s.steps_per_epoch;
    const double low = s.max_lr / s.div_factor, end = low / s.final_div_factor;
    const double top = s.max_momentum, base = s.base_momentum;
    if (s.three_phase)
      phases_ = {{s.pct_start * total - 1, low, s.max_lr, top, base},
                 {2 * s.pct_start * total - 2, s.max_lr, low, base, top},
                 {total - 1, low, end, top, top}};
    else
      phases_ = {{s.pct_start * total - 1, low, s.max_lr, top, base},
                 {total - 1, s.max_lr, end, base, top}};
  }
  double lr(std::int64_t done) const override {
    const auto [phase, share] = find(done);
    return anneal(s_.anneal_strategy == "cos", phase.lr_start, phase.lr_end, share);
  }
  std::optional<double> momentum(std::int64_t done) const override {
    if (!s_.cycle_momentum) return std::nullopt;
    const auto [phase, share] = find(done);
    return anneal(s_.anneal_strategy == "cos", phase.momentum_start, phase.momentum_end, share);
  }

 private:
  struct Phase {
    double last;  // update number, from 0
    double lr_start, lr_end, momentum_start, momentum_end;
  };
  std::pair<Phase, double> find(std::int64_t done) const {
    double start = 0;
    const double at = std::min(static_cast<double>(done), phases_.back().last);
    for (const Phase& phase : phases_) {
      if (at <= phase.last || &phase == &phases_.back())
        return {phase, (at - start) / (phase.last - start)};
      start = phase.last;
    }
    return {phases_.back(), 1};
  }

  config::OneCycleLrSettings s_;
  std::vector<Phase> phases_;
};

class Sequence final : public Schedule {
 public:
  Sequence(std::vector<std::unique_ptr<Schedule>> schedules, std::vector<std::int64_t> milestones)
      : schedules_(std::move(schedules)), milestones_(std::move(milestones)) {}
  double lr(std::int64_t done) const override {
    const auto [schedule, since] = find(done);
    return schedule->lr(since);
  }
  std::optional<double> momentum(std::int64_t done) const override {
    const auto [schedule, since] = find(done);
    return schedule->momentum(since);
  }

 private:
  std::pair<const Schedule*, std::int64_t> find(std::int64_t done) const {
    const auto passed = static_cast<std::size_t>(
        std::upper_bound(milestones_.begin(), milestones_.end(), done) - milestones_.begin());
    return {schedules_[passed].get(), passed == 0 ? done : done - milestones_[passed - 1]};
  }
  std::vector<std::unique_ptr<Schedule>> schedules_;
  std::vector<std::int64_t> milestones_;
};

}  // namespace

std::unique_ptr<Schedule> make_schedule(const config::ConstantSettings&, double base_lr) {
  return curve([base_lr](double) { return base_lr; });
}

std::unique_ptr<Schedule> make_schedule(const config::WarmupLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) {
    return base_lr * std::sqrt(s.warmup_steps) * warmup_shape(done + 1, s.warmup_steps);
  });
}

std::unique_ptr<Schedule> make_schedule(const config::NoamLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) {
    return base_lr / std::sqrt(s.model_size) * warmup_shape(done + 1, s.warmup_steps);
  });
}

std::unique_ptr<Schedule> make_schedule(const config::PiecewiseLinearWarmupLrSettings& settings,
                                        double base_lr) {
  return curve([settings, base_lr](double done) {
    const auto& x = settings.warmup_steps_list;
    const auto& y = settings.warmup_lr_list;
    const double s = done + 1;
    // Beyond the list: the inverse square root that joins the last point (when its rate is lr).
    if (s > x.back()) return base_lr * std::sqrt(x.back()) / std::sqrt(s);
    if (s <= x.front()) return y.front();
    const auto right =
        static_cast<std::size_t>(std::lower_bound(x.begin(), x.end(), s) - x.begin());
    const double share = (s - x[right - 1]) / (x[right] - x[right - 1]);
    return y[right - 1] + share * (y[right] - y[right - 1]);
  });
}

std::unique_ptr<Schedule> make_schedule(const config::CosineWarmupLrSettings& o, double base_lr) {
  return curve([o, base_lr](double done) {
    const double s = done + 1;
    if (s <= o.warmup_steps) return base_lr * s / o.warmup_steps;
    const double share = std::min(1.0, (s - o.warmup_steps) / (o.total_steps - o.warmup_steps));
    return anneal(true, base_lr, o.min_lr, share);
  });
}

std::unique_ptr<Schedule> make_schedule(const config::TriStageLrSettings& o, double base_lr) {
  return curve([o, base_lr](double done) {
    const double warmup = std::floor(o.max_steps * o.warmup_ratio);
    const double hold = std::floor(o.max_steps * o.hold_ratio);
    const double decay = std::floor(o.max_steps * o.decay_ratio);
    const double s = std::min(done + 1, o.max_steps);
    if (s < warmup) return base_lr * (o.init_lr_scale + (1 - o.init_lr_scale) / warmup * s);
    if (s < warmup + hold || decay == 0) return base_lr;
    return base_lr * std::exp(std::log(o.final_lr_scale) / decay * (s - warmup - hold));
  });
}

std::unique_ptr<Schedule> make_schedule(const config::StepLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) {
    return base_lr * std::pow(s.gamma, std::floor(done / s.step_size));
  });
}

std::unique_ptr<Schedule> make_schedule(const config::MultiStepLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) {
    const auto passed = std::count_if(s.milestones.begin(), s.milestones.end(),
                                      [&](double milestone) { return milestone <= done; });
    return base_lr * std::pow(s.gamma, static_cast<double>(passed));
  });
}

std::unique_ptr<Schedule> make_schedule(const config::ExponentialLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) { return base_lr * std::pow(s.gamma, done); });
}

std::unique_ptr<Schedule> make_schedule(const config::CosineAnnealingLrSettings& s,
                                        double base_lr) {
  return curve(
      [s, base_lr](double done) { return anneal(true, base_lr, s.eta_min, done / s.T_max); });
}

std::unique_ptr<Schedule> make_schedule(const config::CosineRestartsLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) {
    double length = s.T_0;
    for (; done >= length; length *= s.T_mult) {
      if (s.T_mult == 1) {
        done = std::fmod(done, length);
        break;
      }
      done -= length;
    }
    return anneal(true, base_lr, s.eta_min, done / length);
  });
}

std::unique_ptr<Schedule> make_schedule(const config::LinearLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) {
    const double share = std::min(done, s.total_iters) / s.total_iters;
    return base_lr * anneal(false, s.start_factor, s.end_factor, share);
  });
}

std::unique_ptr<Schedule> make_schedule(const config::ConstantLrSettings& s, double base_lr) {
  return curve(
      [s, base_lr](double done) { return done < s.total_iters ? base_lr * s.factor : base_lr; });
}

std::unique_ptr<Schedule> make_schedule(const config::PolynomialLrSettings& s, double base_lr) {
  return curve([s, base_lr](double done) {
    return base_lr * std::pow(1 - std::min(done, s.total_iters) / s.total_iters, s.power);
  });
}

std::unique_ptr<Schedule> make_schedule(const config::OneCycleLrSettings& s, double) {
  return std::make_unique<OneCycle>(s);
}

std::unique_ptr<Schedule> make_schedule(const config::PlateauLrSettings& s, double base_lr) {
  return std::make_unique<Plateau>(s, base_lr);
}

std::unique_ptr<Schedule> make_sequence(std::vector<std::unique_ptr<Schedule>> schedules,
                                        std::vector<std::int64_t> milestones) {
  return std::make_unique<Sequence>(std::move(schedules), std::move(milestones));
}

}  // namespace tutti::trainer
