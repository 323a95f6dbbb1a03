// A second queue of a GPU, on which weights, gradients and batches travel while the first one
// computes. On a CPU there is no queue: work runs at once, and overlap comes from threads. Internal
// to the room.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <optional>
#include <thread>

#include "tutti/trainer/torch_version.h"

namespace tutti::trainer {

// The end of some work on the side stream.
using Mark = std::shared_ptr<c10::Event>;  // null: nothing to wait for

// c10's device-neutral streams, so that CPU builds compile and test all of it.
class SideStream {
 public:
  explicit SideStream(at::Device device) : device_(device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    if (!device.has_index()) device_ = guard.getDevice();  // "cuda" means the current one
    side_ = guard.getStreamFromGlobalPool(device_, /*isHighPriority=*/false);
  }

  // Queues `work` behind everything the current stream has been given so far.
  template <class Function>
  Mark run(Function&& work) {
    if (side_) {
      c10::Event ready(device_.type());
      ready.record(current());
      ready.block(*side_);
    }
    return run_apart(std::forward<Function>(work));
  }

  // Queues `work` behind nothing: it must not touch what the current stream still makes or reads.
  template <class Function>
  Mark run_apart(Function&& work) {
    if (!side_) {
      work();
      return nullptr;
    }
    const c10::StreamGuard guard(*side_);
    work();
    auto done = std::make_shared<c10::Event>(device_.type());
    done->record(*side_);
    return done;
  }

  // What is queued on the current stream from now on waits for the mark; the host does not.
  void wait(const Mark& mark) const {
    if (mark) mark->block(current());
  }
  // The same, and memory that was allocated on the side stream is not given away before the current
  // one has done with it.
  void adopt(const Mark& mark, const at::Tensor& tensor) const {
    wait(mark);
    if (mark && tensor.device() == device_) tensor.record_stream(current());
  }
  // The host waits.
  static void synchronize(const Mark& mark) {
    if (!mark) return;
#if TUTTI_TORCH_AT_LEAST(2, 4)
    mark->synchronize();
#else
    while (!mark->query()) std::this_thread::yield();
#endif
  }

 private:
  c10::Stream current() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }
  at::Device device_;
  std::optional<c10::Stream> side_;
};

}  // namespace tutti::trainer
