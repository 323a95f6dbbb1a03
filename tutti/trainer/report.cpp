// What people and loggers see.
#include <fmt/format.h>

#include "tutti/core/log.h"
#include "tutti/core/units.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {
namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

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
  metrics["time/data_wait_share"] = ratio(t.data, t.total);
  metrics["time/step"] = t.total / n;
  if (t.audio_seconds > 0)
    metrics["throughput/audio_seconds_per_second"] = ratio(t.audio_seconds, t.total);
  if (t.items > 0) metrics["throughput/items_per_second"] = ratio(t.items, t.total);
  if (run.is_main()) {
    if (run.settings.show_progress) {
      std::string eta;
      if (run.settings.max_steps > 0)
        eta = fmt::format(
            ", eta {}",
            format_duration(static_cast<double>(run.settings.max_steps - run.step) * t.total / n));
      log::info(
          "{}epoch:train:{}-{}batch: iter_time={:.3g}, forward_time={:.3g}, backward_time={:.3g}, "
          "optim_step_time={:.3g}, train_time={:.3g}, {}{}",
          run.epoch + 1, run.first_logged_batch + 1, run.batch, t.data / n, t.forward / n,
          t.backward / n, t.optimizer / n, t.total / n, describe(metrics, "train/"), eta);
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
  return fmt::format("training: {} parameters, strategy {}, {} rank{}, precision {}, device {}",
                     trainable, run.in.strategy.name(), run.in.control.world_size(),
                     run.in.control.world_size() == 1 ? "" : "s", to_string(run.precision.mode()),
                     run.device.str());
}

}  // namespace tutti::trainer
