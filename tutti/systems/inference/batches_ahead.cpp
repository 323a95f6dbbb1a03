#include "tutti/systems/inference/batches_ahead.h"

#include <algorithm>
#include <utility>

#include "tutti/core/log.h"
#include "tutti/core/users_code.h"

namespace tutti::systems {
namespace {

// Where batches do not come as they were announced, nothing is gained by beginning them.
constexpr int kMostInVain = 3;

bool contains(std::span<const std::uint64_t> indices, std::uint64_t index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

}  // namespace

BatchesAhead::BatchesAhead(ReadAhead::Read read, std::shared_ptr<ItemModel> model)
    : model_(std::move(model)), samples_(std::move(read)) {
  if (model_->can_begin()) thread_ = std::thread([this] { work(); });
}

BatchesAhead::~BatchesAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BatchesAhead::expect(std::span<const std::uint64_t> indices) {
  expected_.assign(indices.begin(), indices.end());
  std::vector<std::uint64_t> to_read;
  for (const std::uint64_t index : indices)
    if (!contains(next_, index)) to_read.push_back(index);  // the thread has it, or will
  samples_.expect(to_read);
}

BatchesAhead::Batch BatchesAhead::take(std::span<const std::uint64_t> indices) {
  std::optional<Batch> batch = take_begun(indices);
  if (!batch) batch = {{indices.begin(), indices.end()}, samples_.take(indices), nullptr};
  begin_next(indices);
  return std::move(*batch);
}

std::optional<BatchesAhead::Batch> BatchesAhead::take_begun(
    std::span<const std::uint64_t> indices) {
  const auto is_asked_for = [&](std::uint64_t index) { return contains(indices, index); };
  // One item of a batch that failed, alone: what is begun is for later.
  if (std::none_of(next_.begin(), next_.end(), is_asked_for)) return std::nullopt;
  const bool as_begun = std::equal(next_.begin(), next_.end(), indices.begin(), indices.end());
  std::optional<Batch> batch = await_next();
  if (as_begun) return batch;
  ++num_in_vain_;
  return std::nullopt;
}

std::optional<BatchesAhead::Batch> BatchesAhead::await_next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !wanted_ && !is_busy_; });
  next_.clear();
  return std::exchange(ready_, std::nullopt);
}

void BatchesAhead::begin_next(std::span<const std::uint64_t> taken) {
  if (!thread_.joinable() || expected_.empty() || num_in_vain_ >= kMostInVain) return;
  if (!next_.empty()) {
    if (contains(expected_, next_.front())) return;
    await_next();  // nobody wants it any more
  }
  for (const std::uint64_t index : expected_)
    if (!contains(taken, index)) next_.push_back(index);
  expected_.clear();
  if (next_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    wanted_ = Wanted{next_, samples_.claim(next_)};
  }
  changed_.notify_all();
}

void BatchesAhead::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || wanted_; });
    if (stop_) return;
    const Wanted wanted = *std::exchange(wanted_, std::nullopt);
    Batch batch{wanted.indices, {}, nullptr};
    is_busy_ = true;
    lock.unlock();
    bool is_read = false;
    try {
      batch.samples = samples_.collect(wanted.samples);
      is_read = true;
      batch.begun = model_->begin(batch.samples);
    } catch (...) {  // who asks for the batch reads and decodes it anew, and is told
      log::debug("a batch could not be begun: {}", words_of_exception());
    }
    lock.lock();
    if (is_read) ready_ = std::move(batch);
    is_busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace tutti::systems
