#include "tutti/parallel/worker/worker_state.h"

#include <algorithm>
#include <utility>

namespace tutti::parallel {

void WorkerState::signal_locked() {
  if (signalled_) return;
  signalled_ = true;
  event_.set();
}

void WorkerState::flush_locked() {
  if (results_.empty()) return;
  ready_.push_back(results_.finish(results_lease_));
  ready_bytes_ += ready_.back().size();
}

void WorkerState::push_job(std::uint32_t job, std::string spec_json) {
  const std::lock_guard lock(mutex_);
  leases_.clear();  // of the job before; the driver has fenced them
  job_ = JobOrder{job, std::move(spec_json)};
  wake_.notify_one();
}

void WorkerState::push_lease(const wire::Lease& lease) {
  const std::lock_guard lock(mutex_);
  leases_.push_back({lease.lease, lease.job, lease.ranges, 0});
  wake_.notify_one();
}

std::vector<IndexRange> WorkerState::take_back(std::uint64_t id, std::uint64_t max_items) {
  const std::lock_guard lock(mutex_);
  for (auto lease = leases_.begin(); lease != leases_.end(); ++lease) {
    if (lease->id != id) continue;
    lease->unstarted.erase(lease->unstarted.begin(),
                           lease->unstarted.begin() + static_cast<std::ptrdiff_t>(lease->at));
    lease->at = 0;
    // Whole batches stay here and go elsewhere: what is computed together does not depend on who
    // was idle when, and so neither do the last bits of its results.
    const std::uint64_t total = wire::total_items(lease->unstarted);
    const std::uint64_t kept = (total - std::min(max_items, total)) / batch_size_ * batch_size_;
    auto cut = wire::cut_tail(lease->unstarted, total - kept);
    if (lease->unstarted.empty()) leases_.erase(lease);
    return cut;
  }
  return {};
}

void WorkerState::stop() {
  const std::lock_guard lock(mutex_);
  leases_.clear();
  stop_ = true;
  wake_.notify_one();
}

std::vector<std::string> WorkerState::take_output(std::uint64_t* unfinished) {
  const std::lock_guard lock(mutex_);
  if (unfinished != nullptr) *unfinished = num_queued_locked() + (running_ ? 1 : 0);
  event_.clear();
  signalled_ = false;
  flush_locked();
  last_flush_ = std::chrono::steady_clock::now();
  ready_bytes_ = 0;
  wake_.notify_one();
  return std::exchange(ready_, {});
}

std::optional<WorkerState::Running> WorkerState::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

std::uint64_t WorkerState::num_queued() const {
  const std::lock_guard lock(mutex_);
  return num_queued_locked();
}

std::uint64_t WorkerState::num_queued_locked() const {
  std::uint64_t total = 0;
  for (const auto& lease : leases_)
    for (std::size_t r = lease.at; r < lease.unstarted.size(); ++r)
      total += lease.unstarted[r].count;
  return total;
}

bool WorkerState::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

WorkerState::Next WorkerState::wait(std::uint64_t batch_size, JobOrder& job, BatchOrder& batch) {
  // Results the driver does not take fast enough must not pile up here.
  constexpr std::size_t kMaxReadyBytes = 16 << 20;
  std::unique_lock lock(mutex_);
  batch_size_ = std::max<std::uint64_t>(1, batch_size);
  wake_.wait(lock,
             [&] { return stop_ || job_ || (!leases_.empty() && ready_bytes_ < kMaxReadyBytes); });
  if (stop_) return Next::kStop;
  if (job_) {
    job = std::move(*job_);
    job_.reset();
    current_job_ = job.job;
    return Next::kJob;
  }
  QueuedLease& lease = leases_.front();
  batch.lease = lease.id;
  batch.indices.clear();
  while (batch.indices.size() < batch_size && lease.at < lease.unstarted.size()) {
    IndexRange& range = lease.unstarted[lease.at];
    batch.indices.push_back(range.first++);
    if (--range.count == 0) ++lease.at;
  }
  if (lease.at == lease.unstarted.size()) leases_.pop_front();
  running_ = Running{batch.lease, batch.indices.front(), std::chrono::steady_clock::now()};
  return Next::kBatch;
}

void WorkerState::peek(std::size_t max_items, std::vector<std::uint64_t>& indices) const {
  const std::lock_guard lock(mutex_);
  for (const QueuedLease& lease : leases_)
    for (std::size_t r = lease.at; r < lease.unstarted.size(); ++r)
      for (std::uint64_t i = 0; i < lease.unstarted[r].count; ++i, --max_items) {
        if (max_items == 0) return;
        indices.push_back(lease.unstarted[r].first + i);
      }
}

void WorkerState::add_result(const BatchOrder& batch, const wire::ResultRecord& record, bool last) {
  // A result waits at most about a millisecond for others to share its message.
  constexpr auto kMaxDelay = std::chrono::milliseconds(1);
  constexpr std::size_t kMaxBytes = 128 << 10;
  const std::lock_guard lock(mutex_);
  if (results_lease_ != batch.lease) {
    flush_locked();
    results_lease_ = batch.lease;
  }
  results_.add(record);
  if (results_.num_bytes() > kMaxBytes) flush_locked();
  if (!last) return;
  const bool lease_over = leases_.empty() || leases_.front().id != batch.lease;
  running_.reset();
  if (lease_over || ready_bytes_ > 0 || std::chrono::steady_clock::now() - last_flush_ > kMaxDelay)
    signal_locked();
}

void WorkerState::abandon_running() {
  const std::lock_guard lock(mutex_);
  running_.reset();
}

bool WorkerState::wait_for_stop(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return wake_.wait_for(lock, limit, [&] { return stop_; });
}

void WorkerState::send(std::string message) {
  const std::lock_guard lock(mutex_);
  flush_locked();
  ready_.push_back(std::move(message));
  signal_locked();
}

void WorkerState::set_finished() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  flush_locked();
  signal_locked();
}

}  // namespace tutti::parallel
