// Signals that ask a driver, a worker or a supervisor to stop, counted while an object of this kind
// lives; the former handlers come back with its end. One at a time per process. Handlers and not
// blocked signals: what a worker starts would inherit the block and could not be ended.
// Internal to the room.
#pragma once

#include <csignal>
#include <utility>
#include <vector>

#include "tutti/core/wake_fd.h"

namespace tutti::parallel {

class SignalWatch {
 public:
  // For a driver: a closed terminal, or a reader of our output that leaves, is no reason to stop.
  SignalWatch() : SignalWatch({SIGINT, SIGTERM}, {SIGHUP, SIGPIPE}) {}
  SignalWatch(const std::vector<int>& counted, const std::vector<int>& ignored);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  int count() const noexcept;  // of all counted kinds since construction
  // One was SIGINT. Not whether the first was: two at once are handled in any order.
  bool by_user() const noexcept;
  int fd() const noexcept { return wake_.fd(); }  // readable: one has come

 private:
  void replace(int signal, void (*handler)(int));

  const WakeFd wake_;
  std::vector<std::pair<int, struct sigaction>> former_;
};

}  // namespace tutti::parallel
