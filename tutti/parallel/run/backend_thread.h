// A Backend on a thread of its own: the driver's loop asks and goes on; answers come by its
// mailbox. A scheduler that hangs, lies or is down costs new workers and nothing else.
//
//   BackendThread backend(make, CommandRunner::system(), mailbox, {.run_folder = folder, ...});
//   backend.submit(4, {}, [&](const Submitted& answer) { ... });   // runs on the loop
//   backend.look([&](const std::vector<JobStatus>& jobs) { ... });
//   backend.close();       // ends a command that hangs, cancels everything, joins
//
// All functions are called by the loop's thread. Internal to the room.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/run/job_record.h"
#include "tutti/parallel/run/mailbox.h"

namespace tutti::parallel {

struct Submitted {
  std::vector<JobStatus> jobs;
  std::exception_ptr error;  // none of it, or only a part, was accepted
  bool unreachable = false;  // of the error: the same may be accepted later
};

class BackendThread {
 public:
  using Make = std::function<std::unique_ptr<Backend>(CommandRunner&)>;
  struct Options {
    std::filesystem::path run_folder;
    ParallelSettings settings;  // for the record
    std::string life;
    bool keep_record = false;  // jobs may outlive a killed driver: note them in the run folder
  };
  // Makes the backend (and throws what that throws); then cancels what the record of an earlier
  // driver says it left behind, and tries that again at the end. `runner` and `mailbox` must outlive it.
  BackendThread(const Make& make, CommandRunner& runner, Mailbox& mailbox, Options options);
  ~BackendThread();

  // `avoid`: nodes that should get none of them.
  void submit(int n, std::vector<std::string> avoid, std::function<void(const Submitted&)> then);
  // One look at a time: while one is under way a second one is not begun.
  void look(std::function<void(const std::vector<JobStatus>&)> then);
  void cancel(std::vector<std::string> job_ids);
  // The backend believes them to be over, and they are not.
  void adopt(std::vector<JobStatus> jobs);
  // For how long the call under way has been without an answer.
  double busy_s() const { return thread_ ? thread_->busy_s() : 0; }
  void close() noexcept;

 private:
  class Runner;
  void note(std::vector<std::string> job_ids);  // side thread
  void take_over() noexcept;                    // side thread: the record of an earlier driver
  LeftOver end_earlier_jobs();                  // side thread
  void end_earlier_jobs_again() noexcept;       // side thread
  void forget_own() noexcept;                   // side thread: the record is of others, or none

  const Options options_;
  Mailbox& mailbox_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Backend> backend_;    // touched only by the side thread once it runs
  std::vector<std::string> noted_;      // side thread: what the record says
  std::optional<JobRecord> earlier_;    // side thread: of what is left of an earlier driver
  bool looking_ = false;                // loop
  std::unique_ptr<SideThread> thread_;  // last: it uses everything above
};

}  // namespace tutti::parallel
