// Logging: readable lines on stderr, JSONL into a file, both with level, rank and stage.
//
//   log::configure({.rank = 0, .stage = "train", .jsonl_path = "exp/train.jsonl"});
//   log::info("epoch {} done in {}", epoch, format_duration(seconds));
//
// Thread-safe; one line is one write(), so lines of several processes do not mix. Configured once
// per process by main; until then info and above go to stderr. Logging never throws.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

struct Options {
  Level level = Level::kInfo;        // for stderr; the file gets everything
  std::optional<int> rank;           // shown as [rank 3]
  std::string stage;                 // shown as [train]
  std::filesystem::path jsonl_path;  // empty: no file
};

void configure(const Options& options);
bool enabled(Level level) noexcept;
void write(Level level, std::string_view message) noexcept;

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug))
    write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarning))
    write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError))
    write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tutti::log
