// Signals as a flag that is looked at: nothing happens inside the handler.
//
// The cluster warns before it takes a node away; people cancel. The loop sees the flag, all ranks
// agree to stop, one checkpoint is written. Then, under Slurm, rank 0 asks for a requeue if that is
// what the signal meant: the requeue signal (SIGUSR1 unless the config says otherwise) or a
// preemption. SIGTERM from scancel, Ctrl-C and SIGHUP of a lost terminal end the run; nohup's
// ignored SIGHUP stays ignored.
//
//   StopSignals signals;                                // installs handlers; the destructor puts the
//   signals.while_starting([](int signal) { ... });     // old ones back
//   if (signals.received()) ...
#pragma once

#include <condition_variable>
#include <csignal>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "tutti/core/subprocess.h"

namespace tutti::trainer {

// One per process at a time.
class StopSignals {
 public:
  explicit StopSignals(int requeue_signal = SIGUSR1);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The first signal that came, 0 if none. A second Ctrl-C ends the process at once.
  int received() const noexcept;

  // Before the first step there is nothing to save, and nobody who looks at the flag: ranks meet,
  // the model is built, data is planned. A signal in that time calls `leave`, from a thread; it
  // should end the process.
  void while_starting(std::function<void(int signal)> leave);
  // The loop looks from now on. It may be waiting for another rank when a signal comes, so `announce`
  // is called once, from a thread, until ended().
  void started(std::function<void()> announce);
  void ended();

 private:
  void watch();

  std::map<int, struct sigaction> old_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(int)> leave_;  // guarded by mutex_, which is held while it runs
  std::function<void()> announce_;  // the same
  bool closing_ = false;            // guarded by mutex_
  std::thread watch_;
};

// "SIGTERM"; "signal 44" for others than those we know.
std::string signal_name(int signal);
// Of "SIGUSR1", "USR1"; 0 for other words.
int signal_number(const std::string& name);

// Under Slurm, asks for a requeue of this job (an array task by its own id) if `signal` is the
// requeue signal (0: there is none), or a SIGTERM by which Slurm takes the nodes for a job of more
// weight. Returns whether the job will come back; says in the log why not. Rank 0 only.
bool requeue_if_wanted(int signal, int requeue_signal, CommandRunner& runner);

}  // namespace tutti::trainer
