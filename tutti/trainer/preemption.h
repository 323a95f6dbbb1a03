// SIGTERM and SIGUSR1 (and Ctrl-C) as a flag the loop looks at: nothing happens inside the handler.
//
// The cluster warns before it takes a node away. The loop sees the flag, all ranks agree to stop
// after the same step, one checkpoint is written, and under Slurm rank 0 asks for a requeue.
//
//   StopSignals signals;                        // installs handlers; the destructor puts the old
//   back if (signals.received()) ...
#pragma once

#include <csignal>
#include <string>

#include "tutti/core/subprocess.h"

namespace tutti::trainer {

// One per process at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The first signal that came, 0 if none. A second Ctrl-C ends the process at once.
  int received() const noexcept;

 private:
  struct sigaction old_term_ {};
  struct sigaction old_usr1_ {};
  struct sigaction old_int_ {};
};

// `scontrol requeue JOB` if this is a Slurm job (an array task by its own id). Returns whether the
// job will come back by itself; says in the log why not. Rank 0 only.
bool requeue_under_slurm(CommandRunner& runner);

}  // namespace tutti::trainer
