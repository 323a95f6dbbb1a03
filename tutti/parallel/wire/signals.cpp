#include "tutti/parallel/wire/signals.h"

#include <atomic>

#include "tutti/core/held_signals.h"

namespace tutti::parallel {
namespace {

// A signal handler can only reach globals.
std::atomic<int> signal_count{0};
std::atomic<bool> has_interrupt{false};
std::atomic<int> signal_wake_fd{-1};

void on_signal(int signal) {
  if (signal == SIGINT) has_interrupt = true;
  signal_count.fetch_add(1);
  set_wake_fd(signal_wake_fd);
}

}  // namespace

SignalWatch::SignalWatch(const std::vector<int>& counted, const std::vector<int>& ignored) {
  signal_count = 0;
  has_interrupt = false;
  signal_wake_fd = wake_.fd();
  for (const int signal : counted)
    if (!is_ignored(signal)) replace(signal, on_signal);
  for (const int signal : ignored) replace(signal, SIG_IGN);
}

SignalWatch::~SignalWatch() {
  for (const auto& [signal, action] : former_) ::sigaction(signal, &action, nullptr);
  signal_wake_fd = -1;
}

void SignalWatch::replace(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  struct sigaction former {};
  ::sigaction(signal, &action, &former);
  former_.emplace_back(signal, former);
}

int SignalWatch::count() const noexcept { return signal_count; }
bool SignalWatch::by_user() const noexcept { return has_interrupt; }

}  // namespace tutti::parallel
