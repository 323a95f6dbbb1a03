#include "tutti/core/clock.h"

#include <ctime>

namespace tutti {
namespace {
class SystemClock final : public Clock {
 public:
  TimePoint steady() const override { return std::chrono::steady_clock::now(); }
  double unix_seconds() const override {
    return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
  }
};
}  // namespace

const Clock& Clock::system() {
  static const SystemClock clock;
  return clock;
}

std::string utc_timestamp(double unix_seconds) {
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace tutti
