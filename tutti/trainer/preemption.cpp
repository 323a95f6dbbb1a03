#include "tutti/trainer/preemption.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/held_signals.h"
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

constexpr std::pair<const char*, int> kNames[] = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},
                                                  {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2},
                                                  {"SIGHUP", SIGHUP},   {"SIGCONT", SIGCONT}};

}  // namespace

std::string signal_name(int signal) {
  for (const auto& [name, number] : kNames)
    if (number == signal) return name;
  return "signal " + std::to_string(signal);
}

int signal_number(const std::string& text) {
  for (const auto& [name, number] : kNames)
    if (text == name || "SIG" + text == name) return number;
  return 0;
}

StopSignals::StopSignals(int requeue_signal) {
  g_signal = 0;
  for (const int signal : {SIGTERM, SIGUSR1, requeue_signal})
    if (signal != 0 && !old_.count(signal)) install(signal, &old_[signal]);
  for (const int signal : {SIGINT, SIGHUP})
    if (!old_.count(signal) && !is_ignored(signal)) install(signal, &old_[signal]);
  release_stop_signals();  // of those that came while the program was loaded the first counts
  watch_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  watch_.join();
  for (const auto& [signal, action] : old_) ::sigaction(signal, &action, nullptr);
}

void StopSignals::watch() {
  std::unique_lock lock(mutex_);
  // A handler may not notify anybody, so the flag is looked at now and then.
  while (!changed_.wait_for(lock, std::chrono::milliseconds(50), [this] { return closing_; })) {
    const int signal = received();
    if (signal == 0) continue;
    if (const auto leave = std::exchange(leave_, nullptr)) leave(signal);
    if (const auto announce = std::exchange(announce_, nullptr)) announce();
  }
}

void StopSignals::while_starting(std::function<void(int)> leave) {
  std::lock_guard lock(mutex_);
  leave_ = std::move(leave);
}

void StopSignals::started(std::function<void()> announce) {
  std::lock_guard lock(mutex_);
  leave_ = nullptr;
  announce_ = std::move(announce);
}

void StopSignals::ended() {
  std::lock_guard lock(mutex_);
  leave_ = nullptr;
  announce_ = nullptr;
}

int StopSignals::received() const noexcept { return g_signal.load(std::memory_order_relaxed); }

namespace {

// The job's id for scontrol; empty outside Slurm.
std::string slurm_job() {
  const auto env = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (!env("SLURM_ARRAY_JOB_ID").empty() && !env("SLURM_ARRAY_TASK_ID").empty())
    return env("SLURM_ARRAY_JOB_ID") + "_" + env("SLURM_ARRAY_TASK_ID");
  return env("SLURM_JOB_ID");
}

// Slurm notes the time at which it began to take a job's nodes away.
bool is_preempted(const std::string& job, CommandRunner& runner) {
  const CommandResult result =
      runner.run({.argv = {"scontrol", "show", "job", job}, .timeout = std::chrono::seconds(5)});
  const std::string key = "PreemptTime=";
  const std::size_t at = result.out.find(key);
  if (!result.ok() || at == std::string::npos) return false;
  const std::string value = result.out.substr(at + key.size(), 4);
  return !value.empty() && value[0] >= '0' && value[0] <= '9';
}

}  // namespace

bool requeue_if_wanted(int signal, int requeue_signal, CommandRunner& runner) {
  const std::string job = slurm_job();
  if (job.empty()) return false;
  const bool wanted = (requeue_signal != 0 && signal == requeue_signal) ||
                      (signal == SIGTERM && is_preempted(job, runner));
  if (!wanted) {
    log::info("{} ends the job, it is not requeued; the same command continues from the checkpoint",
              signal_name(signal));
    return false;
  }
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
