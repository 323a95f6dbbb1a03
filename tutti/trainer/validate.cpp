#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
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

void check_validation_interval(const Run& run, std::optional<std::int64_t> batches_in_epoch) {
  const LoopSettings& s = run.settings;
  if (!run.in.valid || s.limit_val_batches.value == 0 || !batches_in_epoch) return;
  if (!s.check_val_every_n_epoch || s.val_check_interval.is_fraction) return;
  const auto every = static_cast<std::int64_t>(s.val_check_interval.value);
  if (every <= *batches_in_epoch) return;
  throw ConfigError(
      fmt::format("trainer.val_check_interval: got {}, but an epoch has {} batches per rank, so "
                  "there would never be a validation",
                  every, *batches_in_epoch),
      "give at most that, a fraction (1.0: at each epoch's end), or set check_val_every_n_epoch: "
      "null to count across epochs");
}

namespace {

// What ranks tell each other where they meet in every pass of a validation.
struct Meeting {
  bool has_batch = false;
  bool stops = false;
};
Meeting meet(Run& run, Meeting mine) {
  const auto all = run.in.control.all_gather("validation batch", mine.stops       ? "s"
                                                                 : mine.has_batch ? "1"
                                                                                  : "0");
  const auto any = [&](const char* word) {
    return std::find(all.begin(), all.end(), word) != all.end();
  };
  return {any("1"), any("s")};
}

// Whether ranks were told to stop, and the signal for all of them.
bool all_leave(Run& run) {
  const bool mine = run.stop_wanted();
  bool leave = false;
  for (const std::string& theirs :
       run.in.control.all_gather("validation ends", mine ? std::to_string(run.own_signal()) : "")) {
    if (theirs.empty()) continue;
    leave = true;
    run.signal = stronger_signal(run.signal, std::stoi(theirs));
  }
  return leave;
}

// A metric that is watched and does not exist would be watched for ever.
void check_monitored(Run& run, const Metrics& metrics) {
  std::vector<std::string> known;
  for (const auto& [name, value] : metrics) known.push_back(name);
  const auto check = [&](const std::string& name, const std::string& who) {
    if (metrics.count(name)) return;
    const std::string guess = closest_match(name, known);
    throw ConfigError(
        fmt::format("{}: there is no metric '{}' in a validation", who, name),
        fmt::format("{}there are: {}", guess.empty() ? "" : "did you mean '" + guess + "'? ",
                    join(known, ", ")));
  };
  for (const Criterion& criterion : run.in.criteria)
    check(criterion.metric, "best_model_criterion or ModelCheckpoint.monitor");
  for (const OptimizerSlot& slot : run.optimizers)
    if (slot.optimizer->watches()) check(slot.optimizer->monitor(), "scheduler_monitor");
}

}  // namespace

bool validate(Run& run, std::optional<std::int64_t> limit, bool sanity_check) {
  torch::NoGradGuard no_grad;
  DataSource& source = *run.in.valid;
  if (!limit) {
    const auto there = source.num_batches(0);
    limit = run.settings.limit_val_batches.of(there, "limit_val_batches");
    if (limit && *limit == 0 && there.value_or(0) > 0)
      throw ConfigError(
          fmt::format("trainer.limit_val_batches: got {}, which is less than one of {} batches",
                      run.settings.limit_val_batches.value, *there),
          "give a number of batches, or a larger fraction; 0 turns validation off");
  }
  const std::string random = random_state(run);
  for (Callback* callback : run.in.callbacks) callback->before_validation(run.moment());
  run.in.model.set_training(false);

  MetricSums sums;
  // Ranks that hold the whole model do not talk during validation, so unequal numbers of batches
  // need no padding. Others go through the passes of the rank with most batches.
  Strategy& strategy = run.in.strategy;
  const auto stop = [&run] { return run.stop_wanted(); };
  DeviceFeed feed(source.open({}), run.precision, run.device);
  for (std::int64_t i = 0;; ++i) {
    std::optional<Batch> batch;
    if ((!limit || i < *limit) && !stop()) batch = feed.next(stop);
    if (strategy.lockstep()) {
      const Meeting all = meet(run, {batch.has_value(), stop()});
      if (all.stops || !all.has_batch) break;
    } else if (!batch || stop()) {
      break;
    }
    strategy.begin({.training = false});
    if (!batch || batch->tensors.empty()) {  // empty: fewer utterances than ranks
      strategy.settle(/*complete=*/false);
      continue;
    }
    run.in.control.set_phase(fmt::format("{} {}/{}", sanity_check ? "sanity check" : "validating",
                                         i + 1, limit ? std::to_string(*limit) : "?"));
    show_validation(run, i + 1, limit, sanity_check);
    run.precision.prepare(*batch);
    const auto autocast = run.precision.forward_scope();
    try {
      sums.add("valid/", run.in.model.validation_step(*batch));
    } catch (...) {  // a user's model may throw anything
      rethrow_model_error(run, *batch);
    }
    strategy.settle(/*complete=*/true);
  }

  run.in.model.set_training(true);
  if (all_leave(run)) {
    feed.do_not_wait();
    for (Callback* callback : run.in.callbacks) callback->after_validation(run.moment());
    restore_random_state(run, random);
    return false;
  }
  const Metrics metrics = sums.merged(run.in.control, "validation metrics").means();
  if (!metrics.empty() && !std::exchange(run.names_known, true)) check_monitored(run, metrics);
  if (!sanity_check) {
    run.validation_pending = false;
    run.last_validation = run.unsaved_validation = metrics;
    report_validation(run, metrics);
    write_metrics(run, metrics);
    for (OptimizerSlot& slot : run.optimizers) {
      const auto watched = metrics.find(slot.optimizer->monitor());
      if (watched != metrics.end()) slot.optimizer->observe(watched->second);
    }
  }
  for (Callback* callback : run.in.callbacks)
    callback->after_validation(run.moment(sanity_check ? nullptr : &run.last_validation));
  return true;
}

}  // namespace tutti::trainer
