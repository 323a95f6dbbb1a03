// From summed gradients to new weights: the true average, clipping, the step, or no step where a
// gradient is not a number.
#include <torch/torch.h>

#include <cmath>

#include "tutti/trainer/run.h"
#include "tutti/trainer/strategies/side_stream.h"

namespace tutti::trainer {
namespace {

// The power of two next to `weight`.
double reference_for(double weight) {
  return weight > 0 && std::isfinite(weight) ? std::exp2(std::round(std::log2(weight))) : 1.0;
}

struct Clipped {
  double factor = 1;   // to multiply gradients with
  bool finite = true;  // false: the step must be skipped
};

// On its way to the host.
class Norm {
 public:
  Norm(const at::Tensor& squared, double average) : average_(average) {
    if (squared.device().is_cpu()) {
      host_ = squared;
      return;
    }
    const at::Device device = squared.device();
    host_ = at::empty({}, squared.options().device(at::kCPU).pinned_memory(true));
    host_.copy_(squared, /*non_blocking=*/true);
    copied_ = std::make_shared<c10::Event>(device.type());
    copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  double value() const {
    SideStream::synchronize(copied_);
    return host_.sqrt().item<double>() * average_;
  }

 private:
  double average_;
  at::Tensor host_;
  Mark copied_;
};

void note_norm(Run& run, const OptimizerSlot& slot, double norm) {
  run.extra_metrics[slot.name.empty() ? "train/grad_norm" : "train/grad_norm/" + slot.name] = norm;
}

// The update of the only optimizer, queued behind the norm of its gradients, which the GPU itself
// looks at: it need not pause until the host has seen it. Empty: that cannot be done here. Else
// whether the gradients are finite; nothing was updated where they are not.
std::optional<bool> update_unseen(Run& run, double average) {
  OptimizerSlot& slot = run.optimizers.front();
  if (!run.device.is_cuda() || run.optimizers.size() != 1 || run.in.strategy.placements() ||
      (slot.clip_val > 0 && slot.clip_algorithm != ClipAlgorithm::kNorm))
    return std::nullopt;
  const std::vector<at::Tensor> gradients = slot.optimizer->gradients();
  if (gradients.empty()) return std::nullopt;
  const at::Tensor squared = run.in.strategy.squared_norm(gradients);
  const Norm norm(squared, average);
  if (!slot.optimizer->step_clipped({run.step, run.epoch}, {squared, average, slot.clip_val}))
    return std::nullopt;
  const bool finite = std::isfinite(norm.value());
  note_norm(run, slot, norm.value());
  if (!finite) slot.optimizer->uncount_step();
  return finite;
}

// The norm is waited for: a step with a NaN in it must not be taken, and that is known only when the
// gradients are there. A GPU pauses for the launch of the optimizer's kernels.
Clipped clip(Run& run, const OptimizerSlot& slot, std::vector<at::Tensor>& gradients,
             double average) {
  const double limit = slot.clip_val;
  Clipped result{.factor = average};
  // Also without gradients here: it may be a sum over ranks.
  const at::Tensor squared = run.in.strategy.squared_norm(gradients);
  if (gradients.empty() && !run.in.strategy.placements()) return result;
  const double norm = squared.sqrt().item<double>() * average;
  result.finite = std::isfinite(norm);
  note_norm(run, slot, norm);
  if (limit > 0 && slot.clip_algorithm == ClipAlgorithm::kNorm)
    result.factor = average * std::min(1.0, limit / (norm + 1e-6));
  if (limit > 0 && slot.clip_algorithm == ClipAlgorithm::kValue) {
    for (at::Tensor& gradient : gradients) gradient.mul_(average).clamp_(-limit, limit);
    result.factor = 1;
  }
  return result;
}

}  // namespace

void discard_gradients(Run& run) {
  for (OptimizerSlot& slot : run.optimizers) slot.optimizer->zero_grad();
}

Update apply_update(Run& run, const Verdict& verdict) {
  torch::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  if (verdict.contributing == 0) {
    discard_gradients(run);
    return Update::kNothing;
  }
  const double average = (run.weighs_losses() ? run.reference_weight / verdict.total_weight
                                              : 1.0 / (verdict.contributing * run.accumulate())) /
                         run.scaler.scale();

  // Decided for all optimizers before any of them moves.
  std::vector<Clipped> factors;
  const std::optional<bool> updated =
      (verdict.groups & 1) != 0 ? update_unseen(run, average) : std::nullopt;
  bool finite = updated.value_or(true);
  for (std::size_t i = 0; i < run.optimizers.size() && !updated; ++i) {
    factors.emplace_back();
    if (!(verdict.groups >> i & 1)) continue;
    std::vector<at::Tensor> gradients = run.optimizers[i].optimizer->gradients();
    factors[i] = clip(run, run.optimizers[i], gradients, average);
    finite &= factors[i].finite;
  }
  Update result = finite ? Update::kTaken : Update::kNotFinite;
  if (run.scaler.enabled()) {
    // Below 1 no scale is to blame.
    if (!finite && run.scaler.scale() > 1) result = Update::kOverflow;
    run.scaler.update(finite);
    run.extra_metrics["train/loss_scale"] = run.scaler.scale();
  }
  if (finite && !updated)
    for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
      if (!(verdict.groups >> i & 1)) continue;
      OptimizerSlot& slot = run.optimizers[i];
      slot.optimizer->step({run.step, run.epoch}, factors[i].factor);
    }
  discard_gradients(run);
  run.reference_weight = reference_for(verdict.total_weight);
  run.times.optimizer +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tutti::trainer
