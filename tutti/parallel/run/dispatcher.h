// The items of the run at hand: leases to workers, results from them, strikes, the report. What
// becomes of workers is the pool's business. Touched only by the loop. Internal to the room.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tutti/parallel/run/pool.h"
#include "tutti/parallel/run/recent_rate.h"
#include "tutti/parallel/run/run_state.h"

namespace tutti::parallel {

class Dispatcher {
 public:
  bool has_run() const noexcept { return run_ != nullptr; }
  bool draining() const noexcept { return draining_; }
  std::uint32_t job_serial() const noexcept { return job_serial_; }
  // Items without a result; 0 without a run.
  std::uint64_t num_unfinished() const { return run_ ? run_->schedule.num_unfinished() : 0; }

  void begin(std::shared_ptr<RunState> run);
  void abandon() noexcept {
    run_.reset();
    failure_ = nullptr;
  }
  void finish(std::exception_ptr error, Pool& pool);

  // ---- what workers say
  void on_results(PoolWorker& worker, std::string bytes, Pool& pool);
  void on_heartbeat(PoolWorker& worker, std::uint64_t queued_items);
  void on_released(const PoolWorker& worker, const wire::Released& released);
  void on_trouble(PoolWorker& worker, const wire::Trouble& trouble, Pool& pool);
  void on_bad_message();
  void on_stale_message();

  // ---- what becomes of them
  void on_lost(const PoolWorker& worker, bool blame, Pool& pool);
  void take_leases(const PoolWorker& worker);  // nobody is to blame

  // ---- each pass of the loop
  void hand_out(Pool& pool, SteadyTime now);
  // True: stop at once was asked for.
  bool drain_if_asked(Pool& pool);
  void publish(Pool& pool, SteadyTime now, std::uint64_t refused_peers);

  // Any thread: item time of a job known from earlier runs, seeds the leases of the next; 0: none.
  double item_seconds(const std::string& job_key) const;

 private:
  // An item has failed and the run is to stop: results that are on their way are taken in, items
  // at work are not waited for.
  void stop_after(std::exception_ptr failure, Pool& pool);
  void fail_item(std::uint64_t index, const std::string& text, int worker, Pool& pool);
  void hand_out(PoolWorker& worker, std::size_t most, int live, Pool& pool, SteadyTime now);
  void recall(const RecallOrder& order, Pool& pool);
  void fill_report(Pool& pool, SteadyTime now);

  std::shared_ptr<RunState> run_;
  std::uint32_t job_serial_ = 0;
  bool draining_ = false;
  std::exception_ptr failure_;  // what ends the run as soon as the last results are in
  SteadyTime failed_at_{};
  SteadyTime run_began_{};
  SteadyTime last_publish_{};
  SteadyTime last_recall_{};
  RecentRate rate_;
  std::uint64_t refused_peers_ = 0;

  mutable std::mutex mutex_;
  std::map<std::string, double> item_seconds_;  // guarded by mutex_; by job
};

// Jobs of one key share what is known of their items.
std::string job_key(const JobSpec& job);

}  // namespace tutti::parallel
