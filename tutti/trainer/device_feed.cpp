#include "tutti/trainer/device_feed.h"

#include <torch/torch.h>

#include <algorithm>

namespace tutti::trainer {

DeviceFeed::DeviceFeed(std::unique_ptr<BatchStream> stream, const Precision& precision,
                       at::Device device)
    : precision_(precision), stream_(std::move(stream)), side_(device) {
  if (device.is_cpu()) return;
  thread_ = std::thread([this, device] {
    const c10::DeviceGuard guard(device);  // else the thread would open the first GPU as well
    feed();
  });
}

DeviceFeed::~DeviceFeed() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

DeviceFeed::Ahead DeviceFeed::take() {
  Ahead out;
  try {
    out.batch = stream_->next();
  } catch (...) {  // whatever it is, next() throws it
    out.error = std::current_exception();
    return out;
  }
  if (!out.batch) return out;
  Batch moved = *out.batch;
  try {
    for (auto& [name, tensor] : moved.tensors)
      if (tensor.device().is_cpu() && !name.ends_with("_lengths") && !tensor.is_pinned())
        tensor = tensor.pin_memory();
    out.copied = side_.run_apart([&] { precision_.prepare(moved); });
    SideStream::synchronize(out.copied);  // only then may the host's memory be used again
    out.batch = std::move(moved);
  } catch (const c10::Error&) {  // no memory there, most likely: met again where it is handled
    out.copied.reset();
  }
  return out;
}

void DeviceFeed::feed() {
  for (bool over = false; !over;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return wanted_ || stopping_; });
      if (stopping_) return;
      wanted_ = false;
    }
    Ahead next = take();
    over = !next.batch;
    std::lock_guard lock(mutex_);
    ahead_ = std::move(next);
    changed_.notify_all();
  }
}

std::optional<Batch> DeviceFeed::next() {
  if (!thread_.joinable()) return stream_->next();
  Ahead next;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ahead_.has_value(); });
    if (!ahead_->batch) {  // the end stays the end, an error an error
      if (ahead_->error) std::rethrow_exception(ahead_->error);
      return std::nullopt;
    }
    next = std::move(*ahead_);
    ahead_.reset();
    wanted_ = true;
  }
  changed_.notify_all();
  if (next.copied)
    for (const auto& [name, tensor] : next.batch->tensors) side_.adopt(next.copied, tensor);
  return std::move(next.batch);
}

data::Allocator host_allocator(at::Device device) {
  if (device.is_cpu()) return data::allocate_plain;
  return [device](std::size_t num_bytes) -> std::shared_ptr<void> {
    const c10::DeviceGuard guard(device);  // a loader's thread knows no device yet
    const at::Tensor memory =
        at::empty({static_cast<std::int64_t>(std::max<std::size_t>(num_bytes, 1))},
                  at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    return {memory.data_ptr(), [memory](void*) {}};
  };
}

}  // namespace tutti::trainer
