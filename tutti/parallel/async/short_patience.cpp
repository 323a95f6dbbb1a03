#include "tutti/parallel/async/short_patience.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tutti/core/error.h"

namespace tutti::parallel {

using namespace std::chrono_literals;

ShortPatience::ShortPatience(const SignalWatch* signals) : signals_(signals) {
  const char* text = std::getenv(kSchedulerPatience);
  if (const double seconds = text != nullptr ? std::atof(text) : 0; seconds > 0)
    first_patience_ = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
  patience_ = first_patience_;
}

CommandResult ShortPatience::run(const Command& command) {
  Command own = command;
  if (!patient_) own.timeout = own.timeout == 0ms ? patience_ : std::min(own.timeout, patience_);
  if (signals_ != nullptr) own.stop_fd = signals_->fd();
  CommandResult result;
  if (silent_.contains(own.argv.at(0))) {
    result.timed_out = true;
    result.command = own.describe();
  } else {
    result = CommandRunner::system().run(own);
  }
  if (signals_ != nullptr && signals_->count() > 0 && !result.ok())
    throw Cancelled(signals_->by_user() ? Cancelled::By::kUser : Cancelled::By::kSignal,
                    fmt::format("stopped while {} had not answered", own.argv.at(0)));
  if (result.timed_out) silent_.insert(own.argv.at(0));
  return result;
}

void ShortPatience::ask_again() {
  if (silent_.empty()) return;
  silent_.clear();
  patience_ = std::min(2 * patience_, 4 * first_patience_);
}

}  // namespace tutti::parallel
