#include "tutti/core/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <mutex>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"

namespace tutti::log {
namespace {

// The process's one log: a program has one stderr, so this state is global by nature.
struct State {
  std::mutex mutex;
  Options options;  // guarded by mutex
  UniqueFd jsonl;   // guarded by mutex
};

State& state() {
  static State instance;
  return instance;
}

constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};

void put(int fd, std::string_view line) noexcept {
  // A full disk or a closed terminal must not stop the work; there is nowhere left to complain.
  if (::write(fd, line.data(), line.size()) < 0) return;
}

}  // namespace

void configure(const Options& options) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.options = options;
  s.jsonl.reset();
  if (options.jsonl_path.empty()) return;
  if (options.jsonl_path.has_parent_path()) make_folders(options.jsonl_path.parent_path());
  s.jsonl.reset(
      ::open(options.jsonl_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!s.jsonl) throw_errno("cannot open log file " + options.jsonl_path.string(), errno);
}

bool enabled(Level level) noexcept {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return level >= s.options.level || s.jsonl;
}

void write(Level level, std::string_view message) noexcept try {
  State& s = state();
  const std::string_view name = kNames[static_cast<std::size_t>(level)];
  const double now = Clock::system().unix_seconds();
  const std::lock_guard lock(s.mutex);
  if (level >= s.options.level) {
    const auto seconds = static_cast<std::time_t>(now);
    std::tm local{};
    localtime_r(&seconds, &local);
    char time[16];
    const std::size_t time_size = std::strftime(time, sizeof time, "%H:%M:%S", &local);
    std::string line(time, time_size);
    if (!s.options.stage.empty()) line += fmt::format(" [{}]", s.options.stage);
    if (s.options.rank) line += fmt::format(" [rank {}]", *s.options.rank);
    if (level != Level::kInfo) line += fmt::format(" {}:", name);
    line += fmt::format(" {}\n", message);
    put(STDERR_FILENO, line);
  }
  if (s.jsonl) {
    Json record = {{"time", utc_timestamp(now)}, {"unix", now}, {"level", name}};
    if (s.options.rank) record["rank"] = *s.options.rank;
    if (!s.options.stage.empty()) record["stage"] = s.options.stage;
    record["message"] = message;
    put(s.jsonl.get(), to_json_line(record) + "\n");
  }
} catch (const std::exception&) {
  put(STDERR_FILENO, "tutti: a log line could not be formatted\n");
}

}  // namespace tutti::log
