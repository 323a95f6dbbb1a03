#include "tutti/parallel/run/signals.h"

#include <atomic>

namespace tutti::parallel {
namespace {

// A signal handler can only reach globals.
std::atomic<int> signal_count{0};
std::atomic<int> first_signal{0};

void on_signal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  signal_count.fetch_add(1);
}

}  // namespace

SignalWatch::SignalWatch() {
  signal_count = 0;
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &old_int_);
  ::sigaction(SIGTERM, &action, &old_term_);
  // A closed terminal, or a reader of our output that leaves, is no reason to stop.
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGHUP, &action, &old_hup_);
  ::sigaction(SIGPIPE, &action, &old_pipe_);
}

SignalWatch::~SignalWatch() {
  ::sigaction(SIGINT, &old_int_, nullptr);
  ::sigaction(SIGTERM, &old_term_, nullptr);
  ::sigaction(SIGHUP, &old_hup_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_, nullptr);
}

int SignalWatch::count() const noexcept { return signal_count; }
bool SignalWatch::by_user() const noexcept { return first_signal == SIGINT; }

}  // namespace tutti::parallel
