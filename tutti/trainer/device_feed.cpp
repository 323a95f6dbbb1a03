#include "tutti/trainer/device_feed.h"

#include <torch/torch.h>

#include <algorithm>

namespace tutti::trainer {

struct DeviceFeed::Shared {
  struct Ahead {
    std::optional<Batch> batch;
    Mark copied;  // null: it is where it came from
    std::exception_ptr error;
  };
  Shared(std::unique_ptr<BatchStream> from, const Precision& how, at::Device where)
      : precision(how), device(where), stream(std::move(from)), side(where) {}

  Ahead take();
  void feed();

  // Constant after construction.
  const Precision precision;
  const at::Device device;
  std::unique_ptr<BatchStream> stream;  // used by the thread only
  SideStream side;

  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Ahead> ahead;  // guarded by mutex
  bool wanted = true;          // guarded by mutex; the thread may take another
  bool stopping = false;       // guarded by mutex
  bool ended = false;          // guarded by mutex; the thread is at its end
};

DeviceFeed::Shared::Ahead DeviceFeed::Shared::take() {
  Ahead out;
  try {
    out.batch = stream->next();
  } catch (...) {  // whatever it is, next() throws it
    out.error = std::current_exception();
    return out;
  }
  if (!out.batch || device.is_cpu()) return out;
  Batch moved = *out.batch;
  try {
    for (auto& [name, tensor] : moved.tensors)
      if (tensor.device().is_cpu() && !name.ends_with("_lengths") && !tensor.is_pinned())
        tensor = tensor.pin_memory();
    out.copied = side.run_apart([&] { precision.prepare(moved); });
    SideStream::synchronize(out.copied);  // only then may the host's memory be used again
    out.batch = std::move(moved);
  } catch (const c10::Error&) {  // no memory there, most likely: met again where it is handled
    out.copied.reset();
  }
  return out;
}

void DeviceFeed::Shared::feed() {
  for (bool over = false; !over;) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return wanted || stopping; });
      if (stopping) break;
      wanted = false;
    }
    Ahead next = take();
    over = !next.batch;
    std::lock_guard lock(mutex);
    ahead = std::move(next);
    changed.notify_all();
  }
  std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

DeviceFeed::DeviceFeed(std::unique_ptr<BatchStream> stream, const Precision& precision,
                       at::Device device)
    : shared_(std::make_shared<Shared>(std::move(stream), precision, device)) {
  thread_ = std::thread([shared = shared_] {
    std::optional<c10::DeviceGuard> guard;  // else the thread would open the first GPU as well
    if (!shared->device.is_cpu()) guard.emplace(shared->device);
    shared->feed();
  });
}

DeviceFeed::~DeviceFeed() {
  bool ended = true;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
    if (given_up_)
      ended = shared_->changed.wait_for(lock, std::chrono::seconds(1),
                                        [this] { return shared_->ended; });
  }
  if (ended)
    thread_.join();
  else
    thread_.detach();
}

std::optional<Batch> DeviceFeed::next(const std::function<bool()>& give_up) {
  Shared::Ahead next;
  {
    std::unique_lock lock(shared_->mutex);
    while (!shared_->changed.wait_for(lock, std::chrono::milliseconds(100),
                                      [this] { return shared_->ahead.has_value(); }))
      if (give_up && give_up()) {
        given_up_ = true;
        return std::nullopt;
      }
    if (!shared_->ahead->batch) {  // the end stays the end, an error an error
      if (shared_->ahead->error) std::rethrow_exception(shared_->ahead->error);
      return std::nullopt;
    }
    next = std::move(*shared_->ahead);
    shared_->ahead.reset();
    shared_->wanted = true;
  }
  shared_->changed.notify_all();
  if (next.copied)
    for (const auto& [name, tensor] : next.batch->tensors) shared_->side.adopt(next.copied, tensor);
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
