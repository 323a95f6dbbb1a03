#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "tutti/core/log.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {

bool validation_due(const Run& run, std::optional<std::int64_t> batches_in_epoch,
                    std::int64_t batch_before, bool epoch_over) {
  const LoopSettings& s = run.settings;
  if (!run.in.valid || s.limit_val_batches.value == 0) return false;
  if (!s.check_val_every_n_epoch) {  // batches across epochs
    const auto every = static_cast<std::int64_t>(s.val_check_interval.value);
    const std::int64_t before = run.epoch * batches_in_epoch.value_or(0);
    return every > 0 && (before + run.batch) / every > (before + batch_before) / every;
  }
  if ((run.epoch + 1) % *s.check_val_every_n_epoch != 0) return false;
  if (s.val_check_interval.is_fraction && s.val_check_interval.value == 1.0) return epoch_over;
  std::int64_t every = static_cast<std::int64_t>(s.val_check_interval.value);
  if (s.val_check_interval.is_fraction) {
    if (!batches_in_epoch) return epoch_over;
    every =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(*batches_in_epoch) *
                                                            s.val_check_interval.value));
  }
  return every > 0 && run.batch / every > batch_before / every;
}

// Whether any rank has another batch.
static bool anyone_has(Run& run, bool mine) {
  const auto all = run.in.control.all_gather("validation batch", mine ? "1" : "0");
  return std::find(all.begin(), all.end(), "1") != all.end();
}

void validate(Run& run, std::optional<std::int64_t> limit, bool sanity_check) {
  torch::NoGradGuard no_grad;
  DataSource& source = *run.in.valid;
  if (!limit) limit = run.settings.limit_val_batches.of(source.num_batches(0), "limit_val_batches");
  for (Callback* callback : run.in.callbacks) callback->before_validation(run.moment());
  run.in.model.set_training(false);

  MetricSums sums;
  // Ranks that hold the whole model do not talk during validation, so unequal numbers of batches
  // need no padding. Others go through the passes of the rank with most batches.
  Strategy& strategy = run.in.strategy;
  DeviceFeed feed(source.open({0, 0, run.in.control.world_size()}), run.precision, run.device);
  for (std::int64_t i = 0;; ++i) {
    std::optional<Batch> batch;
    if (!limit || i < *limit) batch = feed.next();
    if (!batch && !(strategy.lockstep() && anyone_has(run, false))) break;
    if (batch && strategy.lockstep()) anyone_has(run, true);
    strategy.begin({.training = false});
    if (!batch || batch->tensors.empty()) {  // empty: fewer utterances than ranks
      strategy.settle(/*complete=*/false);
      continue;
    }
    run.in.control.set_phase(fmt::format("{} {}/{}", sanity_check ? "sanity check" : "validating",
                                         i + 1, limit ? std::to_string(*limit) : "?"));
    run.precision.prepare(*batch);
    const auto autocast = run.precision.forward_scope();
    sums.add("valid/", run.in.model.validation_step(*batch));
    strategy.settle(/*complete=*/true);
  }

  run.in.model.set_training(true);
  const Metrics metrics = sums.merged(run.in.control, "validation metrics").means();
  if (!sanity_check) {
    run.last_validation = run.unsaved_validation = metrics;
    if (run.is_main())
      log::info("epoch_summary:{}epoch:valid: {}", run.epoch + 1, describe(metrics, "valid/"));
    write_metrics(run, metrics);
    for (OptimizerSlot& slot : run.optimizers) {
      const auto watched = metrics.find(slot.schedule.options().monitor);
      if (watched != metrics.end()) slot.schedule.observe(watched->second);
    }
  }
  for (Callback* callback : run.in.callbacks)
    callback->after_validation(run.moment(sanity_check ? nullptr : &run.last_validation));
}

}  // namespace tutti::trainer
