// One `optimizer:` of the config at work: its parameters in groups, each with settings and a
// schedule of its own.
//
// State is kept by parameter, whatever the groups, so a resumed run may have others.
#pragma once

#include "tutti/trainer/optim/optimizer.h"
#include "tutti/trainer/optim/schedule.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::trainer {

// Which parameters a group has: a name matches a pattern with `*` as a whole, and one without as a
// dotted part ("encoder" is in "asr.encoder.0.weight"); `dims`: those with so many dimensions at
// most (1: biases and norms). Both given: both must hold.
struct GroupSpec {
  std::vector<std::string> match;
  std::optional<std::int64_t> dims;
  MakeOptimizer make;

  bool takes(const std::string& name, const at::Tensor& parameter) const;
};

// Whether one of the patterns is the name's, as above; without any, all names are taken.
bool takes_parameter(const std::vector<std::string>& patterns, const std::string& name);

// How far training is.
struct UpdateTime {
  std::int64_t step = 0;   // updates done
  std::int64_t epoch = 0;  // counted from 0
};

class OptimizerGroups {
 public:
  // REQUIRES: at least one group.
  OptimizerGroups(std::vector<std::unique_ptr<Optimizer>> groups, const ScheduleSpec& schedule);

  const NamedTensors& parameters() const { return parameters_; }  // of all groups
  std::vector<at::Tensor> gradients() const;                      // the defined ones
  void zero_grad();
  // The update that follows; see Optimizer::step.
  void step(UpdateTime at, double gradient_factor);
  bool step_clipped(UpdateTime at, const ClippedOnDevice& clipped);
  void uncount_step();
  std::vector<double> lrs(UpdateTime at) const;  // of the update that follows, by group
  bool watches() const { return groups_.front().schedule->watches(); }
  void observe(double value);
  void set_last_phase(LastPhase phase) { last_phase_ = phase; }
  const std::string& monitor() const { return monitor_; }

  std::map<std::string, at::Tensor> state() const;
  void load_state(const std::map<std::string, at::Tensor>& state);
  Json schedule_state() const;
  void load_schedule(const Json& state);

 private:
  struct Group {
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Schedule> schedule;
  };
  std::vector<Group> groups_;
  NamedTensors parameters_;
  double lr(const Group& group, UpdateTime at) const;

  bool by_epoch_;
  std::string monitor_;
  std::optional<LastPhase> last_phase_;
};

}  // namespace tutti::trainer
