// What people and loggers see.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#ifdef TUTTI_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "tutti/core/log.h"
#include "tutti/core/status.h"
#include "tutti/core/units.h"
#include "tutti/trainer/run.h"

namespace tutti::trainer {
namespace {

// "float32", as people of Python write it.
std::string type_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(type);
  }
}

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

// Optimizer steps in all, by the nearest limit; empty: nobody knows.
std::optional<std::int64_t> steps_in_all(const Run& run) {
  const LoopSettings& s = run.settings;
  std::optional<std::int64_t> total;
  if (s.max_steps >= 0) total = s.max_steps;
  if (s.max_epochs >= 0 && run.batches_in_epoch) {
    const std::int64_t window = run.accumulate();
    const auto steps = [window](std::int64_t batches) { return (batches + window - 1) / window; };
    const std::int64_t left =
        (s.max_epochs - run.epoch) * steps(*run.batches_in_epoch) - steps(run.batch);
    total = std::min(total.value_or(run.step + left), run.step + left);
  }
  return total;
}

// The most this process has held of the GPU.
std::uint64_t device_bytes([[maybe_unused]] const Run& run) {
#ifdef TUTTI_WITH_CUDA
  if (run.device.is_cuda())
    return static_cast<std::uint64_t>(
        c10::cuda::CUDACachingAllocator::getDeviceStats(run.device.index()).reserved_bytes[0].peak);
#endif
  return 0;
}

// Of the last update, by parameter group.
std::vector<double> current_lrs(const Run& run, const OptimizerSlot& slot) {
  const std::int64_t last = std::max<std::int64_t>(0, run.step - 1);
  return slot.optimizer->lrs({last, run.epoch});
}

// Names without `prefix`; others are left out.
Numbers without_prefix(const Metrics& metrics, const std::string& prefix) {
  Numbers out;
  for (const auto& [name, value] : metrics)
    if (name.rfind(prefix, 0) == 0) out[name.substr(prefix.size())] = value;
  return out;
}

void update_progress(Run& run) {
  Progress& p = run.console.progress;
  p.epoch = run.epoch + 1;
  if (run.settings.max_epochs >= 0) p.epochs = run.settings.max_epochs;
  p.step = run.step;
  p.steps = steps_in_all(run);
  p.lr = current_lrs(run, run.optimizers[0])[0];
  p.seconds_left.reset();
  if (p.steps && run.console.seconds_per_step > 0)
    p.seconds_left = static_cast<double>(std::max<std::int64_t>(0, *p.steps - run.step)) *
                     run.console.seconds_per_step;
  p.device_bytes = device_bytes(run);
}

bool draws(const Run& run) {
  return run.is_main() && run.settings.show_progress && log::terminal_columns() > 0;
}

// A few times a second, and at once when training gives way to validation or the other way round.
bool is_time_to_draw(Run& run, bool validation) {
  constexpr auto kEvery = std::chrono::milliseconds(200);
  const auto now = std::chrono::steady_clock::now();
  const bool is_new = run.console.drew_validation != validation;
  if (!draws(run) || (!is_new && now - run.console.drawn < kEvery)) return false;
  run.console.drawn = now;
  run.console.drew_validation = validation;
  return true;
}

double elapsed_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Whether these are the best numbers so far by the first criterion.
bool is_best(Run& run, const Metrics& metrics) {
  if (run.in.criteria.empty()) return false;
  const Criterion& criterion = run.in.criteria.front();
  const auto found = metrics.find(criterion.metric);
  if (found == metrics.end() || !std::isfinite(found->second)) return false;
  std::optional<double>& best = run.console.best;
  if (best && !(criterion.better == Better::kLower ? found->second < *best : found->second > *best))
    return false;
  best = found->second;
  return true;
}

ModelSize measure_model(const Run& run) {
  ModelSize size;
  std::vector<std::pair<std::string, std::int64_t>> sizes;
  const Placements* parts = run.in.strategy.placements();
  for (const auto& [name, p] : unique_parameters(run.in.model.named_parameters()).tensors) {
    const auto part = parts ? parts->find(name) : Placements::const_iterator{};
    const std::int64_t n =
        parts && part != parts->end() ? c10::multiply_integers(part->second.shape) : p.numel();
    sizes.emplace_back(name, n);
    size.parameters += n;
    if (p.requires_grad()) size.trained += n;
    size.bytes += static_cast<std::uint64_t>(n) * p.element_size();
    if (size.type.empty()) size.type = type_name(p.scalar_type());
  }
  size.parts = model_parts(sizes);
  return size;
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
  for (std::size_t i = 0, group = 0; i < run.optimizers.size(); ++i, group = 0)
    for (const double lr : current_lrs(run, run.optimizers[i]))
      metrics[fmt::format("optim{}_lr{}", i, group++)] = lr;
  const StepTimes& t = run.times;
  const auto n = static_cast<double>(std::max<std::int64_t>(t.steps, 1));
  const Pace pace = gather_pace(run);
  metrics["time/data_wait_share"] = pace.wait_share;
  metrics["time/step"] = t.total / n;
  metrics["time/data"] = t.data / n;
  metrics["time/forward"] = t.forward / n;
  metrics["time/backward"] = t.backward / n;
  metrics["time/optimizer"] = t.optimizer / n;
  if (pace.audio_per_second > 0)
    metrics["throughput/audio_seconds_per_second"] = pace.audio_per_second;
  if (pace.items_per_second > 0) metrics["throughput/items_per_second"] = pace.items_per_second;
  if (run.is_main()) {
    Progress& progress = run.console.progress;
    progress.train = without_prefix(metrics, "train/");
    progress.audio_per_second = pace.audio_per_second;
    progress.items_per_second = pace.items_per_second;
    progress.wait_share = pace.wait_share;
    if (run.in.control.world_size() > 1) progress.wait_rank = static_cast<int>(pace.wait_rank);
    // Smoothed: one slow interval on a busy machine should not double what is left.
    double& pace_now = run.console.seconds_per_step;
    pace_now = pace_now > 0 ? 0.8 * pace_now + 0.2 * t.total / n : t.total / n;
    update_progress(run);
    // A terminal shows them in its last line, the log file has them all.
    if (draws(run))
      log::debug("{}", log_line(progress));
    else if (run.settings.show_progress)
      log::info("{}", log_line(progress));
    write_metrics(run, metrics);
  }
  run.times = {};
}

void show_progress(Run& run) {
  if (!is_time_to_draw(run, /*validation=*/false)) return;
  update_progress(run);
  log::status(
      progress_line(run.console.progress, static_cast<std::size_t>(log::terminal_columns())));
}

void show_validation(Run& run, std::int64_t batch, std::optional<std::int64_t> batches,
                     bool sanity_check) {
  if (!is_time_to_draw(run, /*validation=*/true)) return;
  log::status(fmt::format("epoch {}, {}: batch {}{}", run.epoch + 1,
                          sanity_check ? "trying a validation" : "validation", batch,
                          batches ? fmt::format("/{}", *batches) : ""));
}

void report_validation(Run& run, const Metrics& metrics) {
  run.console.validation = without_prefix(metrics, "valid/");
  run.console.validation_is_best = is_best(run, metrics);
  const std::string watched =
      run.in.criteria.empty() ? "valid/loss" : run.in.criteria.front().metric;
  if (const auto found = metrics.find(watched); found != metrics.end()) {
    run.console.progress.validation = found->second;
    run.console.progress.validation_name = watched;
  }
  const bool epoch_over = run.batches_in_epoch && run.batch >= *run.batches_in_epoch;
  if (run.is_main() && !epoch_over)  // else it is part of the epoch's line
    log::info("epoch {}, step {}: valid: {}{}", run.epoch + 1, run.step,
              describe_numbers(run.console.validation, kLineWidth - 40),
              run.console.validation_is_best ? " (best so far)" : "");
}

void summarise_epoch(Run& run) {
  MetricSums rest = run.interval.merged(run.in.control, "metrics");
  run.interval.clear();
  run.epoch_sums.add(rest);
  const Metrics plain = run.epoch_sums.means();
  if (run.is_main()) {
    EpochRow row{.epoch = run.epoch + 1,
                 .step = run.step,
                 .train = without_prefix(plain, "train/"),
                 .valid = std::exchange(run.console.validation, {}),
                 .lr = current_lrs(run, run.optimizers[0])[0],
                 .seconds = elapsed_since(run.console.epoch_start),
                 .best = std::exchange(run.console.validation_is_best, false)};
    if (draws(run)) {
      const int columns = std::max(0, log::terminal_columns() - 18);  // beside "12:00:00 [train] "
      for (const std::string& line : run.console.table.add(row, static_cast<std::size_t>(columns)))
        log::info("{}", line);
    } else {
      log::info("{}", log_line(row));
    }
    Metrics metrics;
    for (const auto& [name, value] : plain) metrics[name + "_epoch"] = value;
    write_metrics(run, metrics);
  }
  run.console.epoch_start = std::chrono::steady_clock::now();
  for (Callback* callback : run.in.callbacks) callback->on_epoch_end(run.moment(&plain));
  run.epoch_sums.clear();
}

void report_start(Run& run) {
  run.console.epoch_start = std::chrono::steady_clock::now();
  if (!run.is_main()) return;
  const int ranks = run.in.control.world_size();
  if (run.settings.show_model)
    for (const std::string& line : model_summary(measure_model(run))) log::info("{}", line);
  log::info("strategy {}, {} rank{}, precision {}, device {}", run.in.strategy.name(), ranks,
            ranks == 1 ? "" : "s", to_string(run.precision.mode()), run.device.str());
  if (run.store && !run.in.criteria.empty())
    if (const auto best = run.store->top(run.in.criteria.front())) run.console.best = best->value;
}

void report_end(Run& run, const std::string& reason) {
  if (!run.is_main()) return;
  log::status("");
  log::info("{} epoch{}, {} step{} in {}: {}", run.epoch, run.epoch == 1 ? "" : "s", run.step,
            run.step == 1 ? "" : "s", format_duration(elapsed_since(run.started)), reason);
  if (!run.store) return;
  std::set<std::string> told;  // a callback may watch what best_model_criterion does
  bool names_epochs = false;
  for (const Criterion& criterion : run.in.criteria)
    if (const auto best = run.store->top(criterion)) {
      const auto line =
          fmt::format("best {}: {:.4g} (epoch {}, step {}) in {}", criterion.metric, best->value,
                      best->epoch + 1, best->step, shown_path(best->file));
      if (told.insert(line).second) log::info("{}", line);
      names_epochs |= best->file.filename().string().starts_with("epoch");
    }
  if (names_epochs) log::info("(names of files count epochs from 0)");
}

}  // namespace tutti::trainer
