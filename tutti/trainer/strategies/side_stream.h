// A second queue of a GPU, on which weights travel while the first one computes. On a CPU there is
// no queue: work runs at once, and overlap comes from the transport's threads. Internal to FSDP.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <optional>

namespace tutti::trainer {

// The end of some work on the side stream.
using Mark = std::shared_ptr<c10::Event>;  // null: nothing to wait for

// c10's device-neutral streams, so that CPU builds compile and test all of it.
class SideStream {
 public:
  explicit SideStream(at::Device device) : device_(device) {
    if (!device.is_cpu())
      side_ = c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  }

  // Queues `work` behind everything the current stream has been given so far.
  template <class Function>
  Mark run(Function&& work) {
    if (!side_) {
      work();
      return nullptr;
    }
    c10::Event ready(device_.type());
    ready.record(current());
    ready.block(*side_);
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

 private:
  c10::Stream current() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }
  at::Device device_;
  std::optional<c10::Stream> side_;
};

}  // namespace tutti::trainer
