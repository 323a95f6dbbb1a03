#include "tutti/parallel/run/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/units.h"

namespace tutti::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Phase = PoolWorker::Phase;

constexpr std::size_t kLeasesInFlight = 2;  // one running, one queued: no gap between them
// Of batches one more: who reads ahead knows the next one when it begins one, not only when it is over.
constexpr std::size_t kBatchesInFlight = 3;
constexpr milliseconds kLastResults{1000};  // for those of a run that stops

std::string nth_time(int n) {
  return fmt::format("{}{} time", n, n == 1 ? "st" : n == 2 ? "nd" : n == 3 ? "rd" : "th");
}

std::exception_ptr item_error(std::uint64_t index, std::string_view text) {
  return std::make_exception_ptr(FailedItem{index, std::string(text)});
}

}  // namespace

std::string job_key(const JobSpec& job) {
  return job.runner + "/" + job.function + "/" + job.env_fingerprint();
}

void Dispatcher::begin(std::shared_ptr<RunState> run) {
  run_ = std::move(run);
  ++job_serial_;
  run_->schedule.number_leases_from((static_cast<std::uint64_t>(job_serial_) << 32) + 1);
  draining_ = false;
  failure_ = nullptr;
  run_began_ = steady_clock::now();
  rate_ = {};
  run_->report.total = run_->total;
}

void Dispatcher::finish(std::exception_ptr error, Pool& pool) {
  if (!run_) return;
  fill_report(pool, steady_clock::now());
  if (run_->schedule.item_seconds() > 0) {
    const std::lock_guard lock(mutex_);
    item_seconds_[job_key(run_->job)] = run_->schedule.item_seconds();
  }
  run_->finish(failure_ ? std::exchange(failure_, nullptr) : std::move(error));
  run_.reset();
}

void Dispatcher::stop_after(std::exception_ptr failure, Pool& pool) {
  if (failure_) return;
  failure_ = std::move(failure);
  failed_at_ = steady_clock::now();
  for (const RecallOrder& order : run_->schedule.recall_all()) recall(order, pool);
}

double Dispatcher::item_seconds(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = item_seconds_.find(key);
  return found == item_seconds_.end() ? 0 : found->second;
}

void Dispatcher::on_results(PoolWorker& worker, std::string bytes, Pool& pool) {
  if (!run_) return;
  OutcomeBatch batch;
  batch.bytes = std::make_unique<const std::string>(std::move(bytes));
  const auto message = wire::decode(*batch.bytes);  // again, so that views point into the batch
  const auto& results = std::get<wire::Results>(*message);
  if (run_->schedule.holder(results.lease).value_or(worker.id) != worker.id)
    return on_bad_message();
  batch.outcomes.reserve(results.records.size());
  const wire::ResultRecord* first_failed = nullptr;
  for (const wire::ResultRecord& record : results.records) {
    const double seconds = static_cast<double>(record.run_ns) * 1e-9;
    switch (run_->schedule.report(results.lease, record.index, seconds, record.payload.size())) {
      case Verdict::kCounted:
        batch.outcomes.push_back({record.index, record.status, seconds, worker.id, record.payload,
                                  static_cast<double>(record.start_us) * 1e-6});
        ++worker.report.items;
        worker.busy_ns += record.run_ns;
        if (record.status != wire::ItemStatus::kFailed) break;
        ++run_->report.failed;
        if (first_failed == nullptr) first_failed = &record;
        break;
      case Verdict::kDuplicate:
      case Verdict::kStale:
        ++run_->report.stale_results;
        break;
      case Verdict::kBroken:
        ++run_->report.bad_messages;
        break;
    }
  }
  worker.last_result = steady_clock::now();
  if (batch.outcomes.empty()) return;
  if (run_->report.done == 0)
    run_->report.first_result_s =
        std::chrono::duration<double>(steady_clock::now() - run_began_).count();
  run_->report.done += batch.outcomes.size();
  std::exception_ptr error;
  if (first_failed != nullptr && run_->on_error == "stop")
    error = item_error(first_failed->index, first_failed->payload);
  run_->push(std::move(batch));
  if (error) stop_after(error, pool);
  if (run_->schedule.done()) finish(nullptr, pool);
}

void Dispatcher::fail_item(std::uint64_t index, const std::string& text, int worker, Pool& pool) {
  OutcomeBatch batch;
  batch.bytes = std::make_unique<const std::string>(text);
  batch.outcomes.push_back({index, wire::ItemStatus::kFailed, 0, worker, *batch.bytes});
  ++run_->report.failed;
  ++run_->report.done;
  run_->push(std::move(batch));
  if (run_->on_error == "stop") stop_after(item_error(index, text), pool);
  if (run_->schedule.done()) finish(nullptr, pool);
}

// Leases or results lost with a broken connection: the worker is idle, we think it is busy.
void Dispatcher::on_heartbeat(PoolWorker& worker, std::uint64_t queued_items) {
  if (run_ && worker.phase == Phase::kReady && queued_items == 0 &&
      run_->schedule.num_leases(worker.id) > 0 &&
      worker.last_heard - worker.last_lease > std::chrono::seconds(2))
    take_leases(worker);
}

void Dispatcher::on_released(const PoolWorker& worker, const wire::Released& released) {
  if (!run_) return;
  const bool own = run_->schedule.holder(released.lease).value_or(worker.id) == worker.id;
  if (!own || !run_->schedule.release(released.lease, released.ranges)) on_bad_message();
}

void Dispatcher::on_bad_message() {
  if (run_) ++run_->report.bad_messages;
}

void Dispatcher::on_stale_message() {
  if (run_) ++run_->report.stale_results;
}

void Dispatcher::take_leases(const PoolWorker& worker) {
  if (run_)
    run_->report.handed_again += run_->schedule.lose(worker.id, std::nullopt, false).returned;
}

void Dispatcher::on_trouble(PoolWorker& worker, const wire::Trouble& trouble, Pool& pool) {
  if (worker.phase == Phase::kDying) return;
  const std::string reason(trouble.text);
  pool.cancel_job(worker);
  pool.end(worker, reason, false);
  if (!run_) return;
  if (trouble.kind == wire::TroubleKind::kTimeout) {
    // The same item would take as long again: it has failed.
    const Loss loss = run_->schedule.lose_and_fail(worker.id, {trouble.lease, trouble.index});
    run_->report.handed_again += loss.returned;
    if (loss.quarantined) fail_item(trouble.index, reason, worker.id, pool);
    return;
  }
  const Loss loss = run_->schedule.lose(worker.id, RunningItem{trouble.lease, trouble.index}, true);
  run_->report.handed_again += loss.returned;
  log::warning("item {}: {}; worker {} is replaced", trouble.index, reason, worker.id);
  if (loss.quarantined)
    fail_item(*loss.suspect, fmt::format("{} ({} workers on its own)", reason, loss.strikes),
              worker.id, pool);
}

void Dispatcher::on_lost(const PoolWorker& worker, bool blame, Pool& pool) {
  if (!run_) return;
  if (!worker.said_bye) ++run_->report.workers_lost;
  const Loss loss = run_->schedule.lose(worker.id, worker.running, blame);
  run_->report.handed_again += loss.returned;
  if (worker.overran && loss.suspect) {
    const std::string what = fmt::format(
        "its job reached the walltime after {} with this item",
        format_duration(
            std::chrono::duration<double>(worker.last_heard - worker.last_result).count()));
    if (loss.quarantined)
      return fail_item(*loss.suspect,
                       fmt::format("{}, for the {}; give jobs more time "
                                   "(parallel.options.walltime) or make the item smaller",
                                   what, nth_time(loss.strikes)),
                       worker.id, pool);
    return log::warning("item {}: {}; it begins anew in another job", *loss.suspect, what);
  }
  if (loss.suspect && !loss.quarantined)
    log::warning("worker {} died ({}) at item {}, which gets another try", worker.id, worker.reason,
                 *loss.suspect);
  if (!loss.quarantined) return;
  fail_item(
      *loss.suspect,
      fmt::format("killed {} worker{} on its own; the last one, worker {}: {}{}", loss.strikes,
                  loss.strikes == 1 ? "" : "s", worker.id, worker.reason, worker.log_tail),
      worker.id, pool);
}

void Dispatcher::recall(const RecallOrder& order, Pool& pool) {
  if (PoolWorker* holder = pool.find(order.worker))
    pool.send(*holder, wire::encode(wire::Recall{order.lease, order.max_items}));
}

void Dispatcher::hand_out(Pool& pool, SteadyTime now) {
  if (!run_ || draining_ || failure_ || run_->full()) return;
  const int live = std::max(1, pool.num_live());
  // The idle ones first: what was given back for them must not go to one that is busy.
  const std::size_t in_flight = run_->job.batch_size > 1 ? kBatchesInFlight : kLeasesInFlight;
  for (const std::size_t most : {std::size_t{1}, in_flight})
    for (auto& [id, worker] : pool.workers()) {
      if (worker.said_bye) continue;
      if (worker.phase == Phase::kConnected) {
        if (pool.send(worker, wire::encode(wire::Job{job_serial_, run_->spec_json})))
          worker.phase = Phase::kBuilding;
      } else if (worker.phase == Phase::kReady) {
        hand_out(worker, most, live, pool, now);
      }
    }
}

void Dispatcher::hand_out(PoolWorker& worker, std::size_t most, int live, Pool& pool,
                          SteadyTime now) {
  while (run_->schedule.num_leases(worker.id) < most) {
    const auto order = run_->schedule.next(worker.id, live);
    if (!order) break;
    worker.last_lease = now;
    if (!pool.send(worker, wire::encode(wire::Lease{job_serial_, order->id, order->ranges}))) {
      // Its process has ended or its connection is broken; which of them, we hear in a moment.
      run_->schedule.unsent(order->id);
      break;
    }
  }
  // Nothing left to give, but others may sit on items they have not begun.
  if (run_->schedule.num_leases(worker.id) == 0 && now - last_recall_ > milliseconds(2)) {
    if (const auto order = run_->schedule.recall(worker.id)) {
      last_recall_ = now;
      recall(*order, pool);
    }
  }
}

bool Dispatcher::drain_if_asked(Pool& pool) {
  if (!run_) return false;
  if (failure_ &&
      (!run_->schedule.recalls_pending() || steady_clock::now() - failed_at_ > kLastResults)) {
    finish(nullptr, pool);
    return false;
  }
  const StopRequest asked = run_->stop.load();
  if (asked == StopRequest::kNone) return false;
  const auto by = run_->stop_by_user.load() ? Cancelled::By::kUser : Cancelled::By::kSignal;
  if (asked == StopRequest::kNow) {
    finish(
        std::make_exception_ptr(Cancelled(by, "at once; items that were running will run again")),
        pool);
    return true;
  }
  if (!draining_) {
    draining_ = true;
    for (const RecallOrder& order : run_->schedule.recall_all()) recall(order, pool);
  }
  if (run_->schedule.nothing_held())
    finish(std::make_exception_ptr(Cancelled(by, "running items were finished")), pool);
  return false;
}

void Dispatcher::fill_report(Pool& pool, SteadyTime now) {
  last_publish_ = now;
  RunReport& report = run_->report;
  report.seconds = std::chrono::duration<double>(now - run_began_).count();
  report.refused_peers = refused_peers_;
  report.waiting = pool.waiting();
  report.failed_starts = pool.story();
  report.workers = pool.reports();
  double busy = 0;
  double up = 0;
  bool working = false;
  for (const WorkerReport& worker : report.workers) {
    busy += worker.busy_s;
    up += worker.up_s;
    working = working || worker.phase == "ready";
  }
  rate_.add(report.seconds, report.done, working);
  report.rate = rate_.per_second();
  report.rate_window_s = rate_.window_s();
  report.utilisation = up > 0 ? std::min(1.0, busy / up) : 0;
}

void Dispatcher::publish(Pool& pool, SteadyTime now, std::uint64_t refused_peers) {
  refused_peers_ = refused_peers;
  const auto interval = milliseconds(pool.workers().size() > 200 ? 1000 : 100);
  if (!run_ || now - last_publish_ < interval) return;
  fill_report(pool, now);
  run_->publish(run_->report);
}

}  // namespace tutti::parallel
