// Life and death of workers: who is up, who fell silent, who is replaced, which nodes are left
// alone. Knows nothing of items: what a worker held when it died is the dispatcher's business.
//
// Whom to believe: a worker that talks lives, whatever the scheduler says of its job. A job that
// the scheduler calls over is over when its workers are silent too; one it does not mention is
// unknown, not dead. What this driver did to a worker (it was stopped itself, it cancelled the job)
// is never an item's fault.
//
// Everything slow (scheduler commands, logs on a shared disk) is done by other threads; the loop
// calls tick() and the on_ functions and never waits. Internal to the room.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/parallel/client.h"
#include "tutti/parallel/run/backend_thread.h"
#include "tutti/parallel/run/driver_socket.h"
#include "tutti/parallel/run/pulse.h"
#include "tutti/parallel/run/schedule.h"
#include "tutti/parallel/run/start_ledger.h"

namespace tutti::parallel {

using SteadyTime = std::chrono::steady_clock::time_point;

struct PoolWorker {
  enum class Phase { kStarting, kConnected, kBuilding, kReady, kDying };

  int id = 0;
  JobStatus job;  // of the scheduler; without an id while only the worker has spoken
  bool sole_of_job = true;
  Phase phase = Phase::kStarting;
  std::uint64_t pid = 0;
  std::string host;
  bool said_bye = false;
  bool time_nearly_up = false;  // by its own word: its job's walltime comes
  SteadyTime connected;
  SteadyTime last_result;       // or since when it is ready
  bool heard_since_gap = true;  // since this process was itself stopped or starved
  SteadyTime started;
  SteadyTime last_heard;
  SteadyTime last_sent;
  SteadyTime last_lease;
  WorkerReport report;
  std::uint64_t busy_ns = 0;

  // What the scheduler said when it called the job over, until silence confirms it.
  struct Claim {
    JobStatus job;
    SteadyTime at;
  };
  std::optional<Claim> claim;
  bool outlived_a_claim = false;
  std::optional<SteadyTime> job_runs_since;  // by the scheduler's word

  // kDying
  SteadyTime bury_at;
  std::string reason;
  bool blame = true;
  bool overran = false;  // an item took the whole walltime of its job
  bool failed_start = false;
  bool examined = false;  // the two below are known
  std::string log_tail;
  std::optional<RunningItem> running;

  // Its job was ended by the walltime, and one item had most of the job's time: the next job will not
  // do better. An item that only began late is nobody's fault, nor is one in a job that had no time.
  bool overrun_by_one_item(SteadyTime now) const noexcept {
    return time_nearly_up && phase == Phase::kReady &&
           now - last_result >
               std::max<SteadyTime::duration>((now - connected) / 2, std::chrono::seconds(1));
  }
  bool talks() const noexcept {
    return phase != Phase::kStarting && phase != Phase::kDying && !said_bye;
  }
};

// What the pool tells the rest of the driver; called from tick() and the on_ functions.
class PoolListener {
 public:
  virtual ~PoolListener() = default;
  // A worker is gone or no longer to be trusted: its leases go to others. `blame`: it may have been
  // the item's doing.
  virtual void on_lost(const PoolWorker& worker, bool blame) = 0;
  // Its job waits again, or its process was replaced: the leases go to others, nobody is to blame.
  virtual void on_leases_void(const PoolWorker& worker) = 0;
  // No worker will come up.
  virtual void on_hopeless(std::exception_ptr error) = 0;
};

class Pool {
 public:
  struct Options {
    ParallelSettings settings;
    ClientOptions client;
    std::string own_host;
    std::string life;
    bool local = true;
  };
  // References must outlive it.
  Pool(Options options, DriverSocket& socket, Mailbox& mailbox, PoolListener& listener,
       const BackendThread::Make& make_backend);

  // How many workers there should be from now on; 0: no new ones.
  void want(int n) noexcept { wanted_ = n; }
  // A new run: what went wrong before is forgotten; who is up gets the new job.
  void begin_run();
  void tick(SteadyTime now);
  // This process was stopped, or had no processor, for so long.
  void forgive(std::chrono::steady_clock::duration gap);
  void look_soon() noexcept { last_look_ = {}; }

  void on_hello(int id, std::uint64_t pid, std::string_view host);
  // Null: not one of ours, or no longer; it has been told to leave.
  PoolWorker* heard(int id);
  void on_env_ready(PoolWorker& worker, double build_s);
  void on_env_failed(PoolWorker& worker, std::uint32_t exit_code, std::string_view error);
  void on_bye(PoolWorker& worker, std::string_view reason);
  // Takes the worker out; its leases come back by on_lost.
  void end(PoolWorker& worker, std::string reason, bool blame);
  void cancel_job(const PoolWorker& worker);
  void cancel_all();

  bool send(PoolWorker& worker, std::string_view message);
  std::map<int, PoolWorker>& workers() noexcept { return workers_; }
  PoolWorker* find(int id);
  int num_live() const;
  std::vector<WorkerReport> reports();
  // "2 jobs wait: REASON" in the scheduler's words, or that nobody answers there.
  std::string waiting() const;
  std::string story() const { return ledger_.story(); }

  // Says stop to all, gives them a moment, ends what is left. The last call.
  void close(const std::function<void()>& receive_messages);

 private:
  using Phase = PoolWorker::Phase;

  void bring_up(SteadyTime now);
  void look(SteadyTime now);
  void on_submitted(int asked, const Submitted& answer);
  void on_states(const std::vector<JobStatus>& jobs);
  void take_in(const JobStatus& job);
  void judge_claims(SteadyTime now);
  void watch_silence(SteadyTime now);
  void examine(const PoolWorker& worker);
  void bury_the_dead(SteadyTime now);
  void bury(PoolWorker& worker);
  void start_failed(StartLedger::Failure failure);
  void left_before_ready(const PoolWorker& worker, StartLedger::Failure failure);
  void give_up_if_hopeless(SteadyTime now);
  void ping(SteadyTime now);
  int failure_limit() const;
  int num_ready() const;

  // constant after construction
  const Options options_;
  const Pulse pulse_;
  DriverSocket& socket_;
  Mailbox& mailbox_;
  PoolListener& listener_;

  std::map<int, PoolWorker> workers_;
  std::set<int> buried_;                    // ids never come back
  std::vector<WorkerReport> past_workers_;  // of the current run
  StartLedger ledger_;
  std::set<std::string> set_aside_;  // nodes that were named in the log
  int wanted_ = 0;
  int asked_ = 0;            // workers whose submission is under way
  SteadyTime not_before_{};  // back-off of new starts
  int unanswered_submissions_ = 0;
  std::optional<SteadyTime> unanswered_since_;
  std::map<std::string, int> why_jobs_wait_;
  SteadyTime run_began_{};
  SteadyTime last_look_{};
  SteadyTime last_ping_{};
  SteadyTime last_complaint_{};
  SideThread disk_;        // logs and progress pages
  BackendThread backend_;  // last: gone before what its letters touch
};

}  // namespace tutti::parallel
