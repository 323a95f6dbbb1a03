#include <fmt/format.h>

#include <cmath>

#include "tutti/core/error.h"
#include "tutti/trainer/callbacks/callback.h"

namespace tutti::trainer {
namespace {

class EarlyStopping final : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {}

  void after_validation(const Moment& moment) override {
    if (!moment.metrics) return;  // the sanity check
    const auto found = moment.metrics->find(options_.monitor);
    if (found == moment.metrics->end()) {
      std::string names;
      for (const auto& [name, value] : *moment.metrics) names += (names.empty() ? "" : ", ") + name;
      throw ConfigError(fmt::format("early stopping: there is no metric '{}', only: {}",
                                    options_.monitor, names));
    }
    const double value = found->second;
    if (options_.check_finite && !std::isfinite(value))
      return stop(moment, fmt::format("{} is {}", options_.monitor, value));
    if (options_.stopping_threshold && better(value, *options_.stopping_threshold))
      return stop(moment, fmt::format("{} = {:.4g} reached the stopping threshold",
                                      options_.monitor, value));
    if (options_.divergence_threshold && better(*options_.divergence_threshold, value))
      return stop(moment, fmt::format("{} = {:.4g} passed the divergence threshold",
                                      options_.monitor, value));
    const double delta =
        options_.better == Better::kLower ? options_.min_delta : -options_.min_delta;
    if (!has_best_ || better(value + delta, best_)) {
      best_ = value;
      has_best_ = true;
      waited_ = 0;
    } else if (++waited_ >= options_.patience) {
      stop(moment, fmt::format("{} did not improve on {:.4g} in {} validation{}", options_.monitor,
                               best_, waited_, waited_ == 1 ? "" : "s"));
    }
  }

  void save(Checkpoint& checkpoint) const override {
    checkpoint.trainer["callbacks"]["early_stopping/" + options_.monitor] = {
        {"best", best_}, {"has_best", has_best_}, {"waited", waited_}};
  }
  void load(const Checkpoint& checkpoint) override {
    const std::string key = "early_stopping/" + options_.monitor;
    const Json& all = checkpoint.trainer.at("callbacks");
    if (!all.contains(key)) return;
    best_ = all[key].value("best", 0.0);
    has_best_ = all[key].value("has_best", false);
    waited_ = all[key].value("waited", 0);
  }

 private:
  bool better(double a, double b) const {
    return options_.better == Better::kLower ? a < b : a > b;
  }
  static void stop(const Moment& moment, const std::string& why) {
    *moment.stop_reason = "early stopping: " + why;
  }

  EarlyStoppingOptions options_;
  double best_ = 0;
  bool has_best_ = false;
  int waited_ = 0;
};

}  // namespace

std::unique_ptr<Callback> make_early_stopping(EarlyStoppingOptions options) {
  return std::make_unique<EarlyStopping>(std::move(options));
}

}  // namespace tutti::trainer
