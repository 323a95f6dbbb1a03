// From summed gradients to new weights: the true average, clipping, the step.
#include <torch/torch.h>

#include <cmath>

#include "tutti/core/log.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {
namespace {

// The power of two next to `weight`.
double reference_for(double weight) {
  return weight > 0 && std::isfinite(weight) ? std::exp2(std::round(std::log2(weight))) : 1.0;
}

struct Clipped {
  double factor = 1;         // to multiply gradients with
  at::Tensor device_factor;  // and this, if defined: a GPU's own decision
  bool finite = true;        // false: the step must be skipped
};

// Clips by norm without waiting for a GPU: there the factor stays a tensor.
Clipped clip(Run& run, const OptimizerSlot& slot, std::vector<at::Tensor>& gradients,
             double average) {
  const double limit = slot.clip_val;
  const bool by_norm = limit > 0 && slot.clip_algorithm == ClipAlgorithm::kNorm;
  const bool by_value = limit > 0 && slot.clip_algorithm == ClipAlgorithm::kValue;
  Clipped result;
  result.factor = average;
  at::Tensor norm;
  if (by_norm || run.scaler.enabled())  // also without gradients here: it may be a sum over ranks
    norm = run.in.strategy.squared_norm(gradients).sqrt() * average;
  if (gradients.empty() && !run.in.strategy.placements()) return result;
  if (norm.defined() && (norm.device().is_cpu() || run.scaler.enabled())) {
    const double value = norm.item<double>();
    result.finite = std::isfinite(value);
    if (by_norm) {
      run.extra_metrics[slot.name.empty() ? "train/grad_norm" : "train/grad_norm/" + slot.name] =
          value;
      result.factor = average * std::min(1.0, limit / (value + 1e-6));
      return result;
    }
  }
  if (by_value) {
    for (at::Tensor& gradient : gradients) gradient.mul_(average).clamp_(-limit, limit);
    result.factor = 1;
  }
  if (!by_norm) return result;
  // Infinite or NaN norms give a factor of 0 or NaN; gradients of NaN stay NaN, as in torch.
  result.device_factor = (limit / (norm + 1e-6)).clamp_max(1.0);
  return result;
}

}  // namespace

void discard_gradients(Run& run) {
  for (OptimizerSlot& slot : run.optimizers) slot.optimizer->zero_grad();
}

bool apply_update(Run& run, const Verdict& verdict) {
  torch::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  if (verdict.contributing == 0) {
    discard_gradients(run);
    ++run.skipped;
    return false;
  }
  const double average =
      (run.weighs_losses() ? run.reference_weight / verdict.total_weight
                           : 1.0 / (verdict.contributing * run.settings.accumulate_grad_batches)) /
      run.scaler.scale();

  // Decided for all optimizers before any of them moves.
  std::vector<Clipped> factors;
  bool finite = true;
  for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
    factors.emplace_back();
    if (!(verdict.groups >> i & 1)) continue;
    std::vector<at::Tensor> gradients = run.optimizers[i].optimizer->gradients();
    factors[i] = clip(run, run.optimizers[i], gradients, average);
    finite &= factors[i].finite;
  }
  bool take = finite;
  if (run.scaler.enabled()) {
    take = run.scaler.update(finite);
    run.extra_metrics["train/loss_scale"] = run.scaler.scale();
  } else if (!finite) {
    ++run.bad_in_a_row;
    log::warning("step {} dropped on all ranks: the gradient norm is not finite", run.step);
  }
  if (take)
    for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
      if (!(verdict.groups >> i & 1)) continue;
      OptimizerSlot& slot = run.optimizers[i];
      slot.optimizer->step(
          slot.schedule.lr(slot.schedule.options().by_epoch ? run.epoch : run.step),
          factors[i].factor, factors[i].device_factor);
    }
  else
    ++run.skipped;
  discard_gradients(run);
  run.reference_weight = reference_for(verdict.total_weight);
  run.times.optimizer +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return take;
}

}  // namespace tutti::trainer
