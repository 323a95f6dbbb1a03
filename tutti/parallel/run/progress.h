// The progress line: one line that redraws itself on a terminal, a plain line every ten seconds
// elsewhere. Internal to the room.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tutti/parallel/client.h"

namespace tutti::parallel {

class Progress {
 public:
  Progress(std::uint64_t total, std::uint64_t done_before, bool enabled);
  void show(const RunReport& report, bool last);
  static std::string line(const RunReport& report, std::uint64_t total, std::uint64_t done_before);

 private:
  const std::uint64_t total_;
  const std::uint64_t done_before_;
  const bool enabled_;
  const bool terminal_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace tutti::parallel
