// The driver's side: a pool of workers, kept for several runs.
//
//   Client client(settings);                        // workers start in the background
//   client.run(job, {.indices = range(1000)}, [](const Outcome& outcome) { use(outcome.payload); });
//
// Most code uses runner.h or parallel.h instead. A Client may be used from any thread, one run at a
// time; the outcome callback runs on the calling thread. Workers are children of a thread that
// lives as long as the Client and die with it, whatever happens; a forked child that drops its copy
// disturbs nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/fingerprint.h"
#include "tutti/core/json.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/wire/job_spec.h"
#include "tutti/parallel/wire/wire.h"

namespace tutti::parallel {

// The items of a run: a range, or any list of different indices.
class Indices {
 public:
  Indices(std::uint64_t first, std::uint64_t count);
  Indices(std::vector<std::uint64_t> list);  // throws ConfigError when one is there twice
  std::uint64_t size() const noexcept { return list_.empty() ? count_ : list_.size(); }
  std::uint64_t operator[](std::uint64_t position) const {
    return list_.empty() ? first_ + position : list_[position];
  }
  std::uint64_t bound() const noexcept { return bound_; }  // largest index + 1
  bool is_range() const noexcept { return list_.empty(); }
  std::vector<wire::IndexRange> ranges() const;  // in order

 private:
  std::uint64_t first_ = 0;
  std::uint64_t count_ = 0;
  std::uint64_t bound_ = 0;
  std::vector<std::uint64_t> list_;
};
inline Indices range(std::uint64_t count) { return {0, count}; }
inline Indices range(std::uint64_t first, std::uint64_t end) { return {first, end - first}; }

struct Outcome;

// How one run goes; what is not set here comes from the `parallel:` block.
struct RunOptions {
  std::uint64_t batch_size = 1;
  bool speculate = false;
  std::function<double(std::uint64_t)> cost;  // see BaseRunner::cost
  std::optional<int> max_retries;
  std::optional<std::string> on_error;         // "stop" or "skip"
  std::optional<double> item_timeout_s;        // 0: none
  std::filesystem::path output_dir;            // runners: journal and results go there; empty: none
  std::function<Json(std::uint64_t)> item_of;  // results.jsonl's "item"; empty: the index
  // Runners with an output_dir: what decides the results. Empty: provider, runner, config, params and
  // the provider's model files.
  Fingerprint fingerprint;
  bool redo_if_changed = false;  // see RunFolderOptions; else another fingerprint is refused
  bool keep_old = true;
  bool start_over = false;         // forget what the output_dir holds
  std::string finisher;            // runners with an output_dir: TUTTI_REGISTER_FINISHER's name
  Json finisher_params = nullptr;  // handed to it
  bool progress = false;           // a progress line on stderr
  std::function<void(const Outcome&)> on_outcome;  // sees each as it comes, on the calling thread
  bool handle_signals = false;                     // SIGINT and SIGTERM drain the run
  std::uint64_t max_buffered_bytes = 64 << 20;     // results waiting for a slow consumer
};

// One finished item. The payload is valid during the callback only.
struct Outcome {
  std::uint64_t index = 0;
  wire::ItemStatus status = wire::ItemStatus::kOk;
  double seconds = 0;
  int worker = -1;
  std::string_view payload;  // JSON text, an error's text, or a file name (kOkInFile)
  double started = 0;        // Unix time by its worker's clock; 0: not known (its worker died)
  bool ok() const noexcept { return status != wire::ItemStatus::kFailed; }
};

struct WorkerReport {
  int id = 0;
  std::string host;
  std::uint64_t pid = 0;
  std::string phase;  // "starting", "building", "ready", "gone"
  std::uint64_t items = 0;
  double busy_s = 0;
  double build_s = 0;
  double up_s = 0;
  std::uint64_t rss_bytes = 0;
};

struct RunReport {
  std::uint64_t total = 0;
  std::uint64_t done = 0;  // in this run, failed ones included
  std::uint64_t failed = 0;
  std::uint64_t handed_again = 0;  // items whose worker died or fell silent
  std::uint64_t workers_lost = 0;
  std::uint64_t stale_results = 0;  // dropped by the fence
  std::uint64_t bad_messages = 0;   // malformed, dropped
  std::uint64_t refused_peers = 0;  // failed handshakes since the client was made
  double seconds = 0;
  double first_result_s = 0;
  double rate = 0;           // items per second lately (run/recent_rate.h); 0: not known yet
  double rate_window_s = 0;  // what "lately" is
  std::optional<double>
      eta_s;                  // of what is left, by cost where items have one; empty: not known yet
  double utilisation = 0;     // busy time over the workers' time up
  std::string waiting;        // "2 jobs wait: REASON", in the scheduler's words; empty: none does
  std::string failed_starts;  // "3 starts of workers failed: node7 2 of 2"; empty: none
  std::vector<WorkerReport> workers;
};

struct RunRequest {
  Indices indices{0, 0};
  std::vector<wire::IndexRange>
      work;  // the part of `indices` still to do, in start order; empty: all
  RunOptions options;
  // Called on the calling thread between batches, about ten times a second and at the end.
  std::function<void(const RunReport&, bool last)> on_tick;
};

struct ClientOptions {
  std::filesystem::path run_folder;         // empty: a temporary one (./.tutti-run-* for clusters)
  std::vector<std::string> worker_command;  // empty: this program in worker mode
  double heartbeat_s = 0.5;
  double silence_s = 0;  // a worker silent for so long, and for 6 beats, is replaced; 0: 3 s local,
                         // 20 s cluster
  int env_tries = 3;     // failed starts, with nobody at work, before giving up
};

class Engine;

class Client {
 public:
  // Throws IoError or CommError; does not wait for workers. No worker starts before the first run.
  explicit Client(ParallelSettings settings, ClientOptions options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Runs a job to its end; outcomes come as they are completed, each index once. Throws
  // TaskError (an item failed and on_error is stop; env cannot be built), SchedulerError,
  // CommError, Cancelled (signals), and whatever the callback throws. After a throw the client can
  // run again.
  RunReport run(const JobSpec& job, const RunRequest& request,
                const std::function<void(const Outcome&)>& on_outcome);

  // Brings the workers up before they are needed.
  void start_workers();
  const ParallelSettings& settings() const noexcept;
  const std::filesystem::path& run_folder() const noexcept;
  std::string endpoint() const;
  // Where a kOkInFile outcome lies.
  std::filesystem::path large_result(std::string_view name) const;

 private:
  std::unique_ptr<Engine> engine_;
  const int owner_;  // the process that made it
};

}  // namespace tutti::parallel
