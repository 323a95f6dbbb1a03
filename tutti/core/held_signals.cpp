#include "tutti/core/held_signals.h"

#include <csignal>
#include <initializer_list>

namespace tutti {
namespace {

sigset_t stop_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void hold_stop_signals() noexcept {
  const sigset_t set = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void release_stop_signals() noexcept {
  const sigset_t set = stop_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace tutti
