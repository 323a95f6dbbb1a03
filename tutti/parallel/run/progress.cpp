#include "tutti/parallel/run/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tutti/core/progress.h"
#include "tutti/core/status.h"

namespace tutti::parallel {

Progress::Progress(std::uint64_t total, std::uint64_t done_before, bool enabled)
    : total_(total),
      done_before_(done_before),
      enabled_(enabled),
      terminal_(log::terminal_columns() > 0),
      last_(std::chrono::steady_clock::now()) {}

namespace {

// "1 worker", "4 workers"; "1 of 2 workers" while others are on their way.
std::string count_workers(std::size_t up, std::size_t there) {
  const std::string of = up < there ? fmt::format(" of {}", there) : "";
  return fmt::format("{}{} worker{}", up, of, std::max(up, there) == 1 ? "" : "s");
}

}  // namespace

std::string Progress::line(const RunReport& report, std::uint64_t total,
                           std::uint64_t done_before) {
  const std::uint64_t done = done_before + report.done;
  std::size_t up = 0, there = 0;
  double busiest = 0;
  double idlest = 1;
  for (const WorkerReport& worker : report.workers) {
    if (worker.phase != "gone") ++there;
    if (worker.phase != "ready") continue;
    ++up;
    const double busy = worker.up_s > 0 ? std::min(1.0, worker.busy_s / worker.up_s) : 0;
    busiest = std::max(busiest, busy);
    idlest = std::min(idlest, busy);
  }
  std::string text = fmt::format(
      "{}/{} items ({:.0f} %)", done, total,
      total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 100.0);
  if (report.failed > 0) text += fmt::format(", {} failed", report.failed);
  if (report.rate > 0 || up > 0)  // before that "0/s" would say nothing
    text += ", " + rate_and_rest(report.rate, total - std::min(total, done), report.eta_s);
  text += ", " + count_workers(up, there);
  if (up > 0) text += fmt::format(" (busy {:.0f}-{:.0f} %)", 100 * idlest, 100 * busiest);
  if (!report.waiting.empty()) text += ", " + report.waiting;
  if (report.workers_lost > 0) text += fmt::format(", {} lost", report.workers_lost);
  return text;
}

void Progress::show(const RunReport& report, bool last) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  const auto interval =
      terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000);
  if (!last && now - last_ < interval) return;
  last_ = now;
  const std::string text = line(report, total_, done_before_);
  if (terminal_ && !last) {
    const std::uint64_t done = done_before_ + report.done;
    log::status(fitted_line(
        static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total_, 1)), text,
        static_cast<std::size_t>(std::max(1, log::terminal_columns() - 1))));
    return;
  }
  log::status("");
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace tutti::parallel
