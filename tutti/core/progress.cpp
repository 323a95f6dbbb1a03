#include "tutti/core/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <stop_token>

#include "tutti/core/log.h"
#include "tutti/core/status.h"
#include "tutti/core/units.h"

namespace tutti {

std::string progress_bar(double share, std::size_t width) {
  const auto full =
      static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(width));
  return fmt::format("[{}{}] ", std::string(full, '#'), std::string(width - full, '.'));
}

std::string fitted_line(double share, const std::string& text, std::size_t columns) {
  const auto fitted = [&](std::size_t room) {
    return text.size() <= room ? text : text.substr(0, std::min(room, text.rfind(", ", room)));
  };
  const std::string bar = progress_bar(share);
  if (columns > bar.size()) {
    const std::string behind = fitted(columns - bar.size());
    if (behind.find("ETA") != std::string::npos || text.find("ETA") == std::string::npos)
      return bar + behind;
  }
  return fitted(columns);
}

std::string rate_and_rest(double rate, std::uint64_t left, std::optional<double> eta_s) {
  std::string text = fmt::format("{:.4g}/s", rate);
  if (left > 0) text += ", ETA " + (eta_s ? format_duration(*eta_s) : "?");
  return text;
}

ProgressBar::ProgressBar(std::string what, std::uint64_t total)
    : what_(std::move(what)), total_(total) {}

ProgressBar::~ProgressBar() { log::status(""); }

std::string ProgressBar::line(const std::string& what, std::uint64_t done, std::uint64_t total,
                              double seconds) {
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const std::uint64_t left = total - std::min(total, done);
  const auto eta_s = rate > 0 ? std::optional(static_cast<double>(left) / rate) : std::nullopt;
  return fmt::format("{}: {}/{} ({:.0f} %), {}", what, done, total, 100 * share,
                     rate_and_rest(rate, left, eta_s));
}

void ProgressBar::add(std::uint64_t count) noexcept try {
  constexpr auto kQuiet = std::chrono::seconds(1);
  const std::scoped_lock lock(mutex_);
  done_ += count;
  const auto now = Clock::now();
  const int columns = log::terminal_columns();
  const bool draws = columns > 0;
  const auto every = draws ? Clock::duration(std::chrono::milliseconds(200))
                           : Clock::duration(std::chrono::seconds(30));
  if (now - begin_ < kQuiet || now - shown_ < every) return;
  shown_ = now;
  const std::string text =
      line(what_, done_, total_, std::chrono::duration<double>(now - begin_).count());
  if (draws)
    log::status(fitted_line(
        static_cast<double>(done_) / static_cast<double>(std::max<std::uint64_t>(total_, 1)), text,
        static_cast<std::size_t>(columns - 1)));
  else
    log::info("{}", text);
} catch (const std::exception&) {  // out of memory: nothing to show, and nothing depends on it
}

ProgressWatch::ProgressWatch(std::string what, std::function<Seen()> look)
    : thread_([what = std::move(what), look = std::move(look)](const std::stop_token& stop) {
        std::optional<ProgressBar> bar;
        std::uint64_t shown = 0;
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        while (!stop.stop_requested()) {
          wake.wait_for(lock, stop, std::chrono::milliseconds(200), [] { return false; });
          const Seen seen = look();
          if (seen.done <= shown || seen.total == 0) continue;
          if (!bar) bar.emplace(what, seen.total);
          bar->add(seen.done - shown);
          shown = seen.done;
        }
      }) {}

}  // namespace tutti
