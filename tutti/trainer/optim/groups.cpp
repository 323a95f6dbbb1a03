#include "tutti/trainer/optim/groups.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/core/error.h"

namespace tutti::trainer {

bool takes_parameter(const std::vector<std::string>& patterns, const std::string& name) {
  return patterns.empty() ||
         std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return pattern.find('*') == std::string::npos
                      // "encoder" is in "asr.encoder.0.weight" but not in "encoder2.weight".
                      ? ("." + name + ".").find("." + pattern + ".") != std::string::npos
                      : ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

bool GroupSpec::takes(const std::string& name, const at::Tensor& parameter) const {
  return !(dims && parameter.dim() > *dims) && takes_parameter(match, name);
}

OptimizerGroups::OptimizerGroups(std::vector<std::unique_ptr<Optimizer>> groups,
                                 const ScheduleSpec& schedule)
    : by_epoch_(schedule.by_epoch), monitor_(schedule.monitor) {
  for (auto& optimizer : groups) {
    parameters_.insert(parameters_.end(), optimizer->parameters().begin(),
                       optimizer->parameters().end());
    auto own = schedule.build(optimizer->base_lr());
    groups_.push_back({std::move(optimizer), std::move(own)});
  }
}

std::vector<at::Tensor> OptimizerGroups::gradients() const {
  std::vector<at::Tensor> out;
  for (const Group& group : groups_) {
    const auto more = group.optimizer->gradients();
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

void OptimizerGroups::zero_grad() {
  for (Group& group : groups_) group.optimizer->zero_grad();
}

double OptimizerGroups::lr(const Group& group, UpdateTime at) const {
  const double scheduled = group.schedule->lr(by_epoch_ ? at.epoch : at.step);
  if (!last_phase_ || at.epoch < last_phase_->first_epoch) return scheduled;
  const auto epochs = static_cast<double>(std::max<std::int64_t>(1, last_phase_->annealing_epochs));
  const auto since = static_cast<double>(at.epoch - last_phase_->first_epoch);
  const double share = last_phase_->annealing_epochs == 0 ? 1.0 : std::min(1.0, since / epochs);
  const double moved = last_phase_->cosine ? (1 - std::cos(std::numbers::pi * share)) / 2 : share;
  return last_phase_->lr * moved + scheduled * (1 - moved);
}

void OptimizerGroups::step(UpdateTime at, double gradient_factor) {
  for (Group& group : groups_) {
    if (const auto momentum = group.schedule->momentum(by_epoch_ ? at.epoch : at.step))
      group.optimizer->set_momentum(*momentum);
    group.optimizer->step(lr(group, at), gradient_factor);
  }
}

bool OptimizerGroups::step_clipped(UpdateTime at, const ClippedOnDevice& clipped) {
  if (groups_.size() != 1) return false;  // all of them or none
  Group& group = groups_.front();
  if (group.schedule->momentum(by_epoch_ ? at.epoch : at.step)) return false;
  return group.optimizer->step_clipped(lr(group, at), clipped);
}

void OptimizerGroups::uncount_step() {
  for (Group& group : groups_) group.optimizer->uncount_step();
}

std::vector<double> OptimizerGroups::lrs(UpdateTime at) const {
  std::vector<double> out;
  for (const Group& group : groups_) out.push_back(lr(group, at));
  return out;
}

void OptimizerGroups::observe(double value) {
  for (Group& group : groups_) group.schedule->observe(value);
}

std::map<std::string, at::Tensor> OptimizerGroups::state() const {
  std::map<std::string, at::Tensor> out;
  for (const Group& group : groups_) out.merge(group.optimizer->state());
  return out;
}

void OptimizerGroups::load_state(const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, std::size_t> owner;
  for (std::size_t i = 0; i < groups_.size(); ++i)
    for (const auto& [name, parameter] : groups_[i].optimizer->parameters()) owner[name] = i;
  std::vector<std::map<std::string, at::Tensor>> parts(groups_.size());
  for (const auto& [key, tensor] : state) {
    const auto found = owner.find(key.substr(key.find('/') + 1));
    parts[found == owner.end() ? 0 : found->second][key] = tensor;  // unknown: the first complains
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].optimizer->load_state(parts[i]);
}

Json OptimizerGroups::schedule_state() const {
  Json out = Json::array();
  for (const Group& group : groups_) out.push_back(group.schedule->state());
  return out;
}

void OptimizerGroups::load_schedule(const Json& state) {
  if (!state.is_array() || state.size() != groups_.size()) return;  // other groups: from the start
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].schedule->load(state[i]);
}

}  // namespace tutti::trainer
