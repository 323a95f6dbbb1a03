// Learning-rate schedules as functions of the update number: no hidden state, so resuming needs
// only the number. (Plateau is the exception and says what it saves.)
//
//   Schedule schedule({.kind = ScheduleKind::kWarmup, .warmup_steps = 25000}, base_lr);
//   lr = schedule.lr(updates_done);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::trainer {

enum class ScheduleKind {
  kConstant,
  kWarmup,           // ESPnet WarmupLR: lr * w^0.5 * min(s^-0.5, s * w^-1.5)
  kPiecewiseLinear,  // ESPnet PiecewiseLinearWarmupLR
  kNoam,             // lr * d^-0.5 * min(s^-0.5, s * w^-1.5)
  kCosineWarmup,     // linear to lr, then a half cosine down to min_lr at total_steps
  kPlateau,          // multiplied by `factor` when the monitored number stops improving
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  double warmup_steps = 25000;
  std::vector<double> warmup_steps_list;  // piecewise, increasing
  std::vector<double> warmup_lr_list;     // piecewise, same length
  double model_size = 320;                // Noam's d
  double total_steps = 0;                 // cosine
  double min_lr = 0;                      // cosine, plateau
  double factor = 0.1;                    // plateau
  int patience = 10;                      // plateau: checks without improvement before it acts
  double threshold = 1e-4;                // plateau: relative, as torch's default
  int cooldown = 0;                       // plateau
  bool lower_is_better = true;            // plateau
  std::string monitor = "valid/loss";     // plateau
  bool by_epoch = false;                  // advance per epoch instead of per update
};

class Schedule {
 public:
  // Throws ConfigError when the options contradict themselves.
  Schedule(ScheduleOptions options, double base_lr);
  const ScheduleOptions& options() const { return options_; }
  // For the update after `done` updates (or in epoch `done`, with by_epoch). s = done + 1.
  double lr(std::int64_t done) const;
  // Plateau only: a new value of the monitored number.
  void observe(double value);
  Json state() const;
  void load(const Json& state);

 private:
  ScheduleOptions options_;
  double base_lr_;
  // Plateau.
  double reduction_ = 1;
  double best_ = 0;
  bool has_best_ = false;
  int bad_checks_ = 0;
  int cooldown_left_ = 0;
};

}  // namespace tutti::trainer
