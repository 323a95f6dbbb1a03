// Does somebody on another host live? Judged by the changes of a counter that he keeps writing, as
// this process sees them by its own clock; never by the time he wrote, because clocks of hosts
// differ.
//
//   BeatWatch watch(75);
//   while (watch.look(name, read_beat()) == BeatWatch::Sign::kUnsure) pause();
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tutti/core/clock.h"

namespace tutti::parallel {

class BeatWatch {
 public:
  // Who has not changed anything for `patience_s` is dead.
  explicit BeatWatch(double patience_s, const Clock& clock = Clock::system())
      : patience_(patience_s), clock_(clock) {}

  enum class Sign {
    kUnsure,  // seen only once, not long ago
    kAlive,
    kDead,
  };
  Sign look(const std::string& name, std::uint64_t beat);

 private:
  struct Seen {
    std::uint64_t beat = 0;
    Clock::TimePoint changed;
    bool has_changed = false;
  };
  const Seconds patience_;
  const Clock& clock_;
  std::map<std::string, Seen> seen_;
  Clock::TimePoint last_look_{};
};

}  // namespace tutti::parallel
