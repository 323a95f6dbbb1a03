// What people and loggers see.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/core/log.h"
#include "tutti/core/units.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {
namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

// All ranks' pace since the last log line.
struct Pace {
  double audio_per_second = 0, items_per_second = 0;
  double wait_share = 0;      // of the rank that waits for data most
  std::size_t wait_rank = 0;  // which one that is
};

Pace gather_pace(Run& run) {
  const StepTimes& t = run.times;
  const double mine[] = {ratio(t.audio_seconds, t.total), ratio(t.items, t.total),
                         ratio(t.data, t.total)};
  const auto all = run.in.control.all_gather(
      "step times", std::string(reinterpret_cast<const char*>(mine), sizeof(mine)));
  Pace pace;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    double theirs[3] = {};
    std::memcpy(theirs, all[rank].data(), std::min(sizeof(theirs), all[rank].size()));
    pace.audio_per_second += theirs[0];
    pace.items_per_second += theirs[1];
    if (theirs[2] > pace.wait_share) {
      pace.wait_share = theirs[2];
      pace.wait_rank = rank;
    }
  }
  return pace;
}

// Steps to go by the nearest limit; empty: nobody knows.
std::optional<double> steps_left(const Run& run) {
  const LoopSettings& s = run.settings;
  std::optional<double> left;
  if (s.max_steps >= 0) left = static_cast<double>(s.max_steps - run.step);
  if (s.max_epochs >= 0 && run.batches_in_epoch) {
    const double batches =
        static_cast<double>((s.max_epochs - run.epoch) * *run.batches_in_epoch - run.batch);
    left = std::min(left.value_or(1e18), batches / s.accumulate_grad_batches);
  }
  return left;
}

// "lr=0.001, 93 items/s, data wait 2 %, eta 1 h 3 min"
std::string progress(const Run& run, const Pace& pace, double lr, double seconds_per_step) {
  std::string text = fmt::format("lr={:.3g}", lr);
  if (pace.audio_per_second > 0)
    text += fmt::format(", {:.3g} s of audio/s", pace.audio_per_second);
  else if (pace.items_per_second > 0)
    text += fmt::format(", {:.3g} items/s", pace.items_per_second);
  text += fmt::format(", data wait {:.0f} %", 100 * pace.wait_share);
  if (run.in.control.world_size() > 1 && pace.wait_share > 0.05)
    text += fmt::format(" (rank {})", pace.wait_rank);
  if (const auto left = steps_left(run))
    text += ", eta " + format_duration(*left * seconds_per_step);
  return text;
}

}  // namespace

void write_metrics(Run& run, const Metrics& metrics) {
  for (Logger* logger : run.in.loggers) logger->log({run.step, run.epoch}, metrics);
}

void log_interval(Run& run) {
  MetricSums total = run.interval.merged(run.in.control, "metrics");
  run.interval.clear();
  run.epoch_sums.add(total);
  Metrics metrics = total.means();
  metrics.insert(run.extra_metrics.begin(), run.extra_metrics.end());
  run.extra_metrics.clear();
  for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
    const Schedule& schedule = run.optimizers[i].schedule;
    metrics[fmt::format("optim{}_lr0", i)] =
        schedule.lr(schedule.options().by_epoch ? run.epoch : run.step - 1);
  }
  const StepTimes& t = run.times;
  const auto n = static_cast<double>(std::max<std::int64_t>(t.steps, 1));
  const Pace pace = gather_pace(run);
  metrics["time/data_wait_share"] = pace.wait_share;
  metrics["time/step"] = t.total / n;
  if (pace.audio_per_second > 0)
    metrics["throughput/audio_seconds_per_second"] = pace.audio_per_second;
  if (pace.items_per_second > 0) metrics["throughput/items_per_second"] = pace.items_per_second;
  if (run.is_main()) {
    if (run.settings.show_progress) {
      log::info(
          "{}epoch:train:{}-{}batch: iter_time={:.3g}, forward_time={:.3g}, backward_time={:.3g}, "
          "optim_step_time={:.3g}, train_time={:.3g}, {}, {}",
          run.epoch + 1, run.first_logged_batch + 1, run.batch, t.data / n, t.forward / n,
          t.backward / n, t.optimizer / n, t.total / n, describe(metrics, "train/"),
          progress(run, pace, metrics["optim0_lr0"], t.total / n));
    }
    write_metrics(run, metrics);
  }
  run.first_logged_batch = run.batch;
  run.times = {};
}

void summarise_epoch(Run& run) {
  MetricSums rest = run.interval.merged(run.in.control, "metrics");
  run.interval.clear();
  run.epoch_sums.add(rest);
  Metrics metrics;
  for (const auto& [name, value] : run.epoch_sums.means()) metrics[name + "_epoch"] = value;
  const Metrics plain = run.epoch_sums.means();
  if (run.is_main()) {
    log::info("epoch_summary:{}epoch:train: {}", run.epoch + 1, describe(plain, "train/"));
    write_metrics(run, metrics);
  }
  for (Callback* callback : run.in.callbacks) callback->on_epoch_end(run.moment(&plain));
  run.epoch_sums.clear();
}

std::string describe_run(const Run& run) {
  std::int64_t trainable = 0;
  for (const OptimizerSlot& slot : run.optimizers)
    for (const auto& [name, p] : slot.optimizer->parameters()) trainable += p.numel();
  if (const Placements* parts = run.in.strategy.placements()) {  // this rank's optimizer has a part
    trainable = 0;
    for (const auto& [name, placement] : *parts)
      trainable += c10::multiply_integers(placement.shape);
  }
  const int threads = at::get_num_threads();
  return fmt::format(
      "training: {} parameters, strategy {}, {} rank{}, precision {}, device {}{}", trainable,
      run.in.strategy.name(), run.in.control.world_size(),
      run.in.control.world_size() == 1 ? "" : "s", to_string(run.precision.mode()),
      run.device.str(),
      run.device.is_cpu() ? fmt::format(" ({} thread{})", threads, threads == 1 ? "" : "s") : "");
}

}  // namespace tutti::trainer
