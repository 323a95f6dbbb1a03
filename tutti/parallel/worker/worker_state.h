// What the two threads of a worker share: the compute thread (user code, the process's main thread)
// and the link (the socket, heartbeats, watchdogs), so that a long item never silences the worker.
// Internal to the room.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/wake_fd.h"
#include "tutti/parallel/wire/wire.h"
#include "tutti/parallel/worker/worker.h"

namespace tutti::parallel {

using wire::IndexRange;

class WorkerState {
 public:
  using SteadyTime = std::chrono::steady_clock::time_point;

  // ---- link thread
  void push_job(std::uint32_t job, std::string spec_json);
  void push_lease(const wire::Lease& lease);
  std::vector<IndexRange> take_back(std::uint64_t lease, std::uint64_t max_items);
  void stop();  // no new item; finished() once the running one is over
  // Messages to send. `unfinished`: the items that none of them, nor any before, has a result of.
  std::vector<std::string> take_output(std::uint64_t* unfinished = nullptr);
  int event_fd() const noexcept { return event_.fd(); }
  struct Running {
    std::uint64_t lease = 0;
    std::uint64_t index = 0;
    SteadyTime since;
  };
  std::optional<Running> running() const;
  std::uint64_t num_queued() const;
  bool finished() const;  // the compute thread has left
  double item_timeout() const { return item_timeout_s_.load(std::memory_order_relaxed); }

  // ---- compute thread
  struct JobOrder {
    std::uint32_t job = 0;
    std::string spec_json;
  };
  struct BatchOrder {
    std::uint64_t lease = 0;
    std::vector<std::uint64_t> indices;  // reused between calls
  };
  enum class Next { kStop, kJob, kBatch };
  Next wait(std::uint64_t batch_size, JobOrder& job, BatchOrder& batch);
  // Appends the items that would come next, at most so many.
  void peek(std::size_t max_items, std::vector<std::uint64_t>& indices) const;
  void add_result(const BatchOrder& batch, const wire::ResultRecord& record, bool last);
  // The running batch gets no result; it is somebody else's again.
  void abandon_running();
  // Are we to leave? Waits a moment for the word to arrive.
  bool wait_for_stop(std::chrono::milliseconds limit);
  void send(std::string message);
  void set_item_timeout(double seconds) {
    item_timeout_s_.store(seconds, std::memory_order_relaxed);
  }
  void set_finished();

 private:
  struct QueuedLease {
    std::uint64_t id = 0;
    std::uint32_t job = 0;
    std::vector<IndexRange> unstarted;
    std::size_t at = 0;  // ranges before it are used up
  };
  std::uint64_t num_queued_locked() const;
  void signal_locked();
  void flush_locked();

  WakeFd event_;
  std::atomic<double> item_timeout_s_{0};
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // guarded by mutex_
  std::optional<JobOrder> job_;
  std::uint32_t current_job_ = 0;
  std::deque<QueuedLease> leases_;
  std::optional<Running> running_;
  bool stop_ = false;
  bool finished_ = false;
  wire::ResultsBuilder results_;
  std::uint64_t results_lease_ = 0;
  std::vector<std::string> ready_;
  std::size_t ready_bytes_ = 0;
  std::uint64_t batch_size_ = 1;  // of the job at hand, as wait() was told
  bool signalled_ = false;
  SteadyTime last_flush_{};
};

// The link's thread function; returns when the worker should leave, with its exit code.
using LinkFunction = int(WorkerState& state, const WorkerOptions& options);
LinkFunction run_link;  // to a driver
// run_worker with another link.
int run_worker(const WorkerOptions& options, LinkFunction& link);

}  // namespace tutti::parallel
