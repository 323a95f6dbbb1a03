#include "tutti/systems/inference/read_ahead.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tutti/core/threads.h"

namespace tutti::systems {

ReadAhead::ReadAhead(Read read) : read_(std::move(read)) {
  // A small model on a fast GPU hears 2,000 files a second, and a FLAC file takes some milliseconds to read.
  for (std::size_t t = 0; t < threads_at_most(16); ++t) threads_.emplace_back([this] { work(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_there_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<ReadAhead::Slot> ReadAhead::want_locked(std::uint64_t index) {
  auto& slot = slots_[index];
  if (!slot) {
    slot = std::make_shared<Slot>();
    slot->index = index;
    queue_.push_back(slot);
  }
  return slot;
}

void ReadAhead::expect(std::span<const std::uint64_t> indices) {
  {
    const std::lock_guard lock(mutex_);
    const std::set<std::uint64_t> wanted(indices.begin(), indices.end());
    std::erase_if(slots_, [&](const auto& entry) { return !wanted.contains(entry.first); });
    std::erase_if(queue_, [&](const auto& slot) {
      return !slot->is_claimed && !wanted.contains(slot->index);
    });
    for (const std::uint64_t index : indices) want_locked(index);
  }
  work_there_.notify_all();
}

std::vector<data::Sample> ReadAhead::take(std::span<const std::uint64_t> indices) {
  return collect(claim(indices));
}

ReadAhead::Claim ReadAhead::claim(std::span<const std::uint64_t> indices) {
  Claim claim;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t index : indices) {
      claim.slots_.push_back(want_locked(index));
      claim.slots_.back()->is_claimed = true;
    }
    for (const std::uint64_t index : indices) slots_.erase(index);
  }
  work_there_.notify_all();
  return claim;
}

std::vector<data::Sample> ReadAhead::collect(const Claim& claim) {
  std::vector<data::Sample> samples;
  std::exception_ptr error;
  std::unique_lock lock(mutex_);
  for (const auto& slot : claim.slots_) {
    slot_done_.wait(lock, [&] { return slot->is_done; });
    if (!error) error = slot->error;
    samples.push_back(std::move(slot->sample));
  }
  if (error) std::rethrow_exception(error);
  return samples;
}

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_there_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const std::shared_ptr<Slot> slot = queue_.front();
    queue_.pop_front();
    lock.unlock();
    data::Sample sample;
    std::exception_ptr error;
    try {
      sample = read_(slot->index);
    } catch (...) {  // thrown by take(), to whom it concerns
      error = std::current_exception();
    }
    lock.lock();
    slot->sample = std::move(sample);
    slot->error = error;
    slot->is_done = true;
    slot_done_.notify_all();
  }
}

}  // namespace tutti::systems
