// Learning-rate schedules as functions of the update number: no hidden state, so resuming needs
// only the number. (Plateau is the exception and says what it saves.)
//
//   auto schedule = make_schedule(config::WarmupLrSettings{.warmup_steps = 25000}, base_lr);
//   lr = schedule->lr(updates_done);
//
// torch's schedules give torch's numbers, ESPnet's ESPnet's. A plugin adds its own to
// registry.h's schedulers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/config/schemas/schedules.h"
#include "tutti/core/json.h"

namespace tutti::trainer {

// One per parameter group. Used by one thread.
class Schedule {
 public:
  virtual ~Schedule() = default;
  // For the update after `done` updates (or in epoch `done`, where it advances by epoch).
  virtual double lr(std::int64_t done) const = 0;
  // Momentum (Adam: beta1) of the same update, where the schedule moves it too.
  virtual std::optional<double> momentum(std::int64_t) const { return std::nullopt; }
  // Whether it needs the monitored number; observe() gets each new value of it.
  virtual bool watches() const { return false; }
  virtual void observe(double) {}
  virtual Json state() const { return Json::object(); }
  virtual void load(const Json&) {}
};
using MakeSchedule = std::function<std::unique_ptr<Schedule>(double base_lr)>;

// REQUIRES: settings that their schema accepted.
std::unique_ptr<Schedule> make_schedule(const config::ConstantSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::WarmupLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::PiecewiseLinearWarmupLrSettings&,
                                        double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::NoamLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::CosineWarmupLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::TriStageLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::PlateauLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::StepLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::MultiStepLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::ExponentialLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::CosineAnnealingLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::CosineRestartsLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::OneCycleLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::LinearLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::ConstantLrSettings&, double base_lr);
std::unique_ptr<Schedule> make_schedule(const config::PolynomialLrSettings&, double base_lr);
// Each from its milestone on, counting from 0 there. REQUIRES: one milestone less than schedules,
// increasing.
std::unique_ptr<Schedule> make_sequence(std::vector<std::unique_ptr<Schedule>> schedules,
                                        std::vector<std::int64_t> milestones);

// What an optimizer's schedule is made of.
struct ScheduleSpec {
  MakeSchedule make;                   // empty: the optimizer's lr, all the time
  bool by_epoch = false;               // advance per epoch instead of per update
  std::string monitor = "valid/loss";  // what observe() gets

  std::unique_ptr<Schedule> build(double base_lr) const {
    return make ? make(base_lr) : make_schedule(config::ConstantSettings{}, base_lr);
  }
};

template <class Settings>
ScheduleSpec schedule_spec(const Settings& settings) {
  return {.make = [settings](double base_lr) { return make_schedule(settings, base_lr); }};
}

}  // namespace tutti::trainer
