#include "tutti/core/log.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <mutex>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/path_inside.h"
#include "tutti/core/status.h"

namespace tutti::log {
namespace {

// The process's one log: a program has one stderr, so this state is global by nature.
struct State {
  std::mutex mutex;
  Options options;     // guarded by mutex
  UniqueFd jsonl;      // guarded by mutex
  std::string status;  // guarded by mutex
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

constexpr std::string_view kClearToEnd = "\x1b[K";

bool passed_on() noexcept {
  const char* name = std::getenv(kPassedOnVariable);
  return name != nullptr && file_name(STDERR_FILENO) == name;
}

std::string own_mark() { return passed_on() ? std::string(1, kOwnLine) : std::string(); }

// Ends with a carriage return: the next line is written over it.
std::string drawn(std::string_view text, int columns) {
  text = text.substr(0, static_cast<std::size_t>(columns - 1));
  return fmt::format("{}{}{}\r", own_mark(), text, kClearToEnd);
}

}  // namespace

int terminal_columns() noexcept {
  const char* kind = std::getenv("TERM");
  if (kind != nullptr && std::string_view(kind) == "dumb") return 0;
  if (::isatty(STDERR_FILENO) == 1) {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }
  const char* columns = passed_on() ? std::getenv(kTerminalVariable) : nullptr;
  return columns == nullptr ? 0 : std::max(0, std::atoi(columns));
}

std::string file_name(int fd) noexcept {
  struct stat of {};
  return ::fstat(fd, &of) == 0 ? fmt::format("{}:{}", of.st_dev, of.st_ino) : std::string();
}

void status(std::string_view text) noexcept try {
  const int columns = terminal_columns();
  if (columns < 2) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.options.level > Level::kInfo || (text.empty() && s.status.empty())) return;
  s.status = text;
  put(STDERR_FILENO, drawn(text, columns));
} catch (const std::exception&) {  // out of memory: nothing to show, and nothing depends on it
}

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
    std::string line = own_mark();
    line.append(time, time_size);
    if (!s.options.stage.empty()) line += fmt::format(" [{}]", s.options.stage);
    if (s.options.rank.value_or(0) > 0) line += fmt::format(" [rank {}]", *s.options.rank);
    if (level != Level::kInfo) line += fmt::format(" {}:", name);
    const int columns = s.status.empty() ? 0 : terminal_columns();
    line += ' ';
    for (const char c : message) {  // each line of it is our own
      line += c;
      if (c == '\n') line += own_mark();
    }
    line += fmt::format("{}\n", columns > 0 ? kClearToEnd : "");
    if (columns > 1) line += drawn(s.status, columns);
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

namespace tutti {

std::string shown_path(const std::filesystem::path& path) {
  const auto normal = path.lexically_normal();
  std::error_code failed;
  const auto here = std::filesystem::current_path(failed);
  if (failed || !normal.is_absolute()) return normal.string();
  const auto below = path_inside(normal, here);
  return (below.empty() ? normal : below).string();
}

}  // namespace tutti
