// One run, shared by the engine's thread (fills it) and the caller's (empties it). The queue
// between them is bounded: when the caller is slow the engine stops handing out leases, and only
// then. Internal to the room.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/parallel/client.h"
#include "tutti/parallel/run/schedule.h"

namespace tutti::parallel {

// Outcomes that came in one message; their payloads point into `bytes` (on the heap: a short
// std::string would take its characters along when moved).
struct OutcomeBatch {
  std::unique_ptr<const std::string> bytes;
  std::vector<Outcome> outcomes;
};

// What ends a run under on_error: stop, until Client::run gives the item its name.
struct FailedItem {
  std::uint64_t index = 0;
  std::string error;
};
// "item NAME failed: why". A worker's text says "task error: why", as the message will once more.
std::string item_failure(std::string_view name, std::string_view error);

enum class StopRequest { kNone, kDrain, kNow };

class RunState {
 public:
  RunState(JobSpec job, Schedule schedule, std::uint64_t max_buffered_bytes)
      : job(std::move(job)),
        schedule(std::move(schedule)),
        max_buffered_bytes_(max_buffered_bytes) {}

  // ---- constant after construction
  const JobSpec job;
  std::string spec_json;
  std::string on_error = "stop";
  std::uint64_t total = 0;

  // ---- engine thread only
  Schedule schedule;
  RunReport report;

  // ---- engine thread
  void push(OutcomeBatch batch);
  bool full() const;
  void publish(const RunReport& report);
  void finish(std::exception_ptr error);

  // ---- caller's thread
  // Waits up to `limit`; false: nothing came. `over` says that nothing more will come.
  bool pop(OutcomeBatch& batch, std::chrono::milliseconds limit, bool& over);
  RunReport latest_report() const;
  std::exception_ptr error() const;
  std::atomic<StopRequest> stop{StopRequest::kNone};
  std::atomic<bool> stop_by_user{false};

 private:
  const std::uint64_t max_buffered_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // guarded by mutex_
  std::deque<OutcomeBatch> queue_;
  std::uint64_t buffered_bytes_ = 0;
  RunReport published_;
  std::exception_ptr error_;
  bool finished_ = false;
};

}  // namespace tutti::parallel
