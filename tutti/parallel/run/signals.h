// Ctrl-C and SIGTERM, counted (and SIGHUP and SIGPIPE ignored) while an object of this kind lives; the former handlers come back
// with its end. One at a time per process. Internal to the room.
#pragma once

#include <csignal>

namespace tutti::parallel {

class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  int count() const noexcept;     // of both kinds since construction
  bool by_user() const noexcept;  // the first one was SIGINT

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
  struct sigaction old_hup_ {};
  struct sigaction old_pipe_ {};
};

}  // namespace tutti::parallel
