#include "tutti/core/held_signals.h"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

#include "tutti/core/error.h"

namespace tutti {
namespace {

sigset_t stop_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  return set;
}

// Nothing is half written at any moment: a run goes on from its folder.
void end_with_word(int signal) {
  static constexpr char kInterruptedWord[] =
      "interrupted by SIGINT: the same command begins again, or goes on with what is left\n";
  static constexpr char kStoppedWord[] =
      "stopped by SIGTERM: the same command begins again, or goes on with what is left\n";
  const bool by_user = signal == SIGINT;
  const auto written = by_user ? ::write(2, kInterruptedWord, sizeof(kInterruptedWord) - 1)
                               : ::write(2, kStoppedWord, sizeof(kStoppedWord) - 1);
  static_cast<void>(written);  // there is nobody left to tell
  ::_exit(static_cast<int>(by_user ? ExitCode::kInterrupted : ExitCode::kStoppedResumable));
}

}  // namespace

bool is_ignored(int signal) noexcept {
  struct sigaction given {};
  return ::sigaction(signal, nullptr, &given) == 0 && given.sa_handler == SIG_IGN;
}

void end_on_stop_signals() noexcept {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    now.sa_handler = end_with_word;
    ::sigaction(signal, &now, nullptr);
  }
}

void hold_stop_signals() noexcept {
  const sigset_t set = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void release_stop_signals() noexcept {
  const sigset_t set = stop_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace tutti
