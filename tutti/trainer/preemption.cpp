#include "tutti/trainer/preemption.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/log.h"

namespace tutti::trainer {
namespace {

std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void on_signal(int signal) {
  int none = 0;
  if (!g_signal.compare_exchange_strong(none, signal) && signal == SIGINT && none == SIGINT)
    ::_exit(static_cast<int>(ExitCode::kInterrupted));  // the user means it
}

void install(int signal, struct sigaction* old) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, old);
}

}  // namespace

StopSignals::StopSignals() {
  g_signal = 0;
  install(SIGTERM, &old_term_);
  install(SIGUSR1, &old_usr1_);
  install(SIGINT, &old_int_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGTERM, &old_term_, nullptr);
  ::sigaction(SIGUSR1, &old_usr1_, nullptr);
  ::sigaction(SIGINT, &old_int_, nullptr);
}

int StopSignals::received() const noexcept { return g_signal.load(std::memory_order_relaxed); }

bool requeue_under_slurm(CommandRunner& runner) {
  const auto env = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  std::string job = env("SLURM_JOB_ID");
  if (job.empty()) return false;
  if (!env("SLURM_ARRAY_JOB_ID").empty() && !env("SLURM_ARRAY_TASK_ID").empty())
    job = env("SLURM_ARRAY_JOB_ID") + "_" + env("SLURM_ARRAY_TASK_ID");
  const CommandResult result =
      runner.run({.argv = {"scontrol", "requeue", job}, .timeout = std::chrono::seconds(30)});
  if (result.ok()) {
    log::info("asked Slurm to requeue job {}; it will continue from the checkpoint", job);
    return true;
  }
  log::warning("{}; submit the job again to continue", result.describe());
  return false;
}

}  // namespace tutti::trainer
