// Who starts the workers: this machine, SSH, a batch scheduler or Kubernetes. One file per `env`
// under backends/.
//
// A backend turns "n workers, please" into jobs and reports what became of them; it knows nothing
// about items, leases or results. The client calls it from one thread only, which may wait for it
// as long as it takes (run/backend_thread.h), so implementations need no locks and no hurry. Text in, text out: scripts and command lines are pure functions of the options
// (`scripts()`), and every scheduler command goes through a CommandRunner, so that a scheduler that
// lags or lies can be played in tests.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/config/schema.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"

namespace tutti::parallel {

class KeyRing;

struct WorkerLaunch;
// Is worker `id` on the calling thread, until its driver says stop or is gone for so long.
using ThreadWorker =
    std::function<void(const WorkerLaunch& launch, int id, double death_timeout_s)>;

// What a worker process must be told, the same for every backend. A backend appends
// {"--id", "<worker id>"} to the command, one process per id, and sends its output to
// run_folder/logs/worker-<id>.log. wire/worker_env.h has what the worker's environment may say.
struct WorkerLaunch {
  std::vector<std::string> command;        // {"/path/tutti", "worker", "--run", RUN_FOLDER}
  std::filesystem::path run_folder;        // shared with the workers: keys (0600), logs, scripts
  std::map<std::string, std::string> env;  // nothing secret
  bool outlives_driver = false;            // async: workers stay when the driver goes
  int first_worker_id = 0;  // of the first submission (and so the names of its files)
  // Of the driver: names what it submits, so that it can be found again, and tells the workers of
  // two drivers in one folder apart. Empty: none.
  std::string life;
  // Issues the keys of workers before they are asked for; the backend says for whom. None: workers
  // need no key (async), or nothing is submitted. Must outlive the backend.
  KeyRing* keys = nullptr;
  ThreadWorker thread_worker;  // for workers that are threads; none: there are no such
};

enum class JobPhase { kPending, kRunning, kEnded, kFailed, kVanished };

// One submission (which may hold several workers, `processes` in the options).
struct JobStatus {
  std::string job_id;  // the scheduler's own id, or the pid
  JobPhase phase = JobPhase::kPending;
  std::string reason;           // the scheduler's words: "Resources", "exit code 1", "NODE_FAIL"
  std::filesystem::path log;    // where its output goes; may not exist yet
  std::vector<int> worker_ids;  // the workers this job holds, numbered from 0 over the run
  bool preempted = false;       // ended by the scheduler's will (preemption, walltime): no strike
  bool host_away = false;       // nobody could be reached there; it may come back (ssh)
  std::string node;             // where it runs or ran, where the scheduler says so
};

// What to look at where jobs end before their workers begin.
inline constexpr char kStillbornAdvice[] =
    "look into the log and at what a job does before its worker begins: a login profile "
    "(~/.bash_profile, ~/.profile, /etc/profile) or job_script_prologue that waits or fails, a "
    "parallel.options.walltime that is over by then, a node without the program or the run folder";

// What `tutti parallel script` prints.
struct ScriptPreview {
  std::string script;  // empty where the backend needs none (local)
  std::string submit_command;
};

// A submission may have been accepted or not: nobody answered. The same call may succeed later, and
// then does not submit a second time what the scheduler had taken.
class SchedulerUnreachable : public SchedulerError {
 public:
  using SchedulerError::SchedulerError;
};

// Jobs of a driver that was killed: those that were still there, and of these those that may still be.
struct LeftOver {
  std::size_t found = 0;
  std::vector<std::string> left;  // the log says why
  bool unknown = false;           // no job was noted, and nobody could be asked for others

  bool all_gone() const { return left.empty() && !unknown; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Asks for `n` more workers; returns the jobs that hold them. Throws SchedulerError with the
  // command and the scheduler's words when a submission is refused, SchedulerUnreachable when
  // nobody answers.
  virtual std::vector<JobStatus> submit(int n) = 0;
  // The state of every job of ours that has not been reported as over before. Cheap enough to call
  // every second; backends cache where their scheduler must be spared.
  virtual std::vector<JobStatus> poll() = 0;
  // Why the last poll could only repeat what was known before; empty: it had its answers.
  virtual std::string unanswered() const { return ""; }
  // Ends the given jobs, or all of them when empty. Never throws: it runs on every way out. False:
  // some may be left (the log names them).
  virtual bool cancel(const std::vector<std::string>& job_ids = {}) noexcept = 0;
  // Nodes that later submissions should leave out. Backends that cannot choose ignore it.
  virtual void avoid(const std::vector<std::string>& /*nodes*/) {}
  // Ends what a driver that was killed has left: `job_ids` it had noted, and whatever else of its
  // life the scheduler knows.
  virtual LeftOver cancel_left_over(const std::string& /*life*/,
                                    const std::vector<std::string>& /*job_ids*/) {
    return {};
  }
  // Takes jobs of an earlier driver over, so that poll and cancel know them too. Backends whose
  // workers nobody else can find (this machine, ssh) ignore it: there the heartbeats tell.
  virtual void adopt(const std::vector<JobStatus>& /*jobs*/) {}
  // The scripts and commands `submit(n)` would use; submits nothing.
  virtual std::vector<ScriptPreview> scripts(int n) const = 0;
};

// A `parallel:` block (any named one), read and checked.
struct ParallelSettings {
  std::string env = "local";
  int n_workers = 1;
  config::Node options;  // still raw: each backend has a schema of its own
  int max_retries = 3;   // worker deaths an item survives
  std::string on_error = "stop";
  double item_timeout_s = 0;  // 0: none
  bool resume = true;
  bool async = false;
  std::string interface;
  std::vector<std::string> plugins;
};

// For whoever talks to the scheduler later on: everything that decides how, and nothing secret.
Json to_json(const ParallelSettings& settings);
ParallelSettings parallel_settings_from(const Json& json);

// Reads the block and checks `options` against the backend's schema; reports every problem.
ParallelSettings parse_parallel(const config::Node& block, config::Problems& problems);

// For the reference in docs/: the block, and the options of every env.
std::vector<config::SchemaInfo> parallel_reference();

// How many workers one job of this backend holds (`processes`).
int workers_per_job(const ParallelSettings& settings);

// The backend for `settings.env`. REQUIRES: parse_parallel reported no problem.
std::unique_ptr<Backend> make_backend(const ParallelSettings& settings, const WorkerLaunch& launch,
                                      CommandRunner& runner);

}  // namespace tutti::parallel
