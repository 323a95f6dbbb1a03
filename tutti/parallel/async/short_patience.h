// Scheduler commands on behalf of somebody who waits at a terminal. A program that has not answered
// within a few seconds counts as silent and is not asked a second time; with `signals`, Ctrl-C or
// SIGTERM ends the command under way.
//
//   ShortPatience scheduler;
//   auto state = async_state(dir, true, nullptr, scheduler);   // state->unanswered: it said nothing
//
// Not thread-safe. Internal to the room and to apps.
#pragma once

#include <chrono>
#include <set>
#include <string>

#include "tutti/core/subprocess.h"
#include "tutti/parallel/wire/signals.h"

namespace tutti::parallel {

// In the environment, in seconds: for schedulers that are always slow.
inline constexpr char kSchedulerPatience[] = "TUTTI_SCHEDULER_PATIENCE";

class ShortPatience final : public CommandRunner {
 public:
  explicit ShortPatience(const SignalWatch* signals = nullptr);
  // Throws Cancelled when a signal has come.
  CommandResult run(const Command& command) override;
  // Who was silent is asked again and gets more time, up to four times: for who looks again and again.
  void ask_again();
  // A submission may take its own time: giving up on one that was accepted costs more than waiting.
  void patient(bool yes) noexcept { patient_ = yes; }
  void ignore_signals() noexcept { signals_ = nullptr; }

 private:
  const SignalWatch* signals_;
  bool patient_ = false;
  std::chrono::milliseconds first_patience_{5000};
  std::chrono::milliseconds patience_{};
  std::set<std::string> silent_;  // programs
};

}  // namespace tutti::parallel
