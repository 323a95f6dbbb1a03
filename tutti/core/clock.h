// Time behind an interface, so that deadlines and heartbeats can be tested without waiting.
#pragma once

#include <chrono>
#include <string>

namespace tutti {

using Seconds = std::chrono::duration<double>;

// Thread-safe. `steady` never jumps (use it for deadlines); `unix_seconds` is the wall clock (use
// it only for what people or other hosts read).
class Clock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  virtual ~Clock() = default;
  virtual TimePoint steady() const = 0;
  virtual double unix_seconds() const = 0;

  // The machine's clock; lives for the whole program.
  static const Clock& system();
};

// A clock that stands still until told otherwise. Not thread-safe.
class FakeClock final : public Clock {
 public:
  TimePoint steady() const override {
    return TimePoint{} + std::chrono::duration_cast<TimePoint::duration>(now_);
  }
  double unix_seconds() const override { return 1.7e9 + now_.count(); }
  void advance(Seconds by) { now_ += by; }

 private:
  Seconds now_{0};
};

// "2026-11-15T08:09:17Z", for logs and manifests.
std::string utc_timestamp(double unix_seconds);

}  // namespace tutti
