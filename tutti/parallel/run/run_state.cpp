#include "tutti/parallel/run/run_state.h"

#include <fmt/format.h>

namespace tutti::parallel {
namespace {

std::uint64_t weight(const OutcomeBatch& batch) {
  return batch.bytes->size() + batch.outcomes.size() * sizeof(Outcome);
}

}  // namespace

void RunState::push(OutcomeBatch batch) {
  const std::lock_guard lock(mutex_);
  buffered_bytes_ += weight(batch);
  queue_.push_back(std::move(batch));
  changed_.notify_one();
}

bool RunState::full() const {
  const std::lock_guard lock(mutex_);
  return buffered_bytes_ > max_buffered_bytes_;
}

std::string item_failure(std::string_view name, std::string_view error) {
  constexpr std::string_view kKind = "task error: ";
  if (error.starts_with(kKind)) error.remove_prefix(kKind.size());
  return fmt::format("item {} failed: {}", name, error);
}

void RunState::publish(const RunReport& report) {
  const std::lock_guard lock(mutex_);
  published_ = report;
}

void RunState::finish(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  published_ = report;
  error_ = std::move(error);
  finished_ = true;
  changed_.notify_one();
}

bool RunState::pop(OutcomeBatch& batch, std::chrono::milliseconds limit, bool& over) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return finished_ || !queue_.empty(); });
  over = finished_ && queue_.empty();
  if (queue_.empty()) return false;
  batch = std::move(queue_.front());
  queue_.pop_front();
  buffered_bytes_ -= weight(batch);
  return true;
}

RunReport RunState::latest_report() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

std::exception_ptr RunState::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace tutti::parallel
