#include "tutti/speech/ops/gpu/side_stream.h"

#ifdef TUTTI_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <mutex>

namespace tutti::speech {

struct SideStream::Queue {
  c10::cuda::CUDAStream stream;
  std::mutex mutex;
};

struct SideStream::Mark::Event {
  at::cuda::CUDAEvent event;
};

struct SideStream::Scope::Held {
  std::lock_guard<std::mutex> lock;
  c10::cuda::CUDAStreamGuard guard;
};

SideStream::SideStream(const torch::Device& device) {
  if (!device.is_cuda()) return;
  const c10::cuda::OptionalCUDAGuard guard(device);
  queue_.reset(new Queue{c10::cuda::getStreamFromPool(), {}});
}
SideStream::~SideStream() = default;

SideStream::Scope::Scope(SideStream& stream) {
  if (stream.queue_)
    held_.reset(new Held{std::lock_guard(stream.queue_->mutex),
                         c10::cuda::CUDAStreamGuard(stream.queue_->stream)});
}
SideStream::Scope::~Scope() = default;

SideStream::Mark SideStream::mark() const {
  Mark mark;
  if (!queue_) return mark;
  mark.event_ = std::make_shared<Mark::Event>();
  mark.event_->event.record(queue_->stream);
  return mark;
}

void SideStream::Mark::wait() const {
  if (event_) event_->event.synchronize();
}

void SideStream::give_to_current(const torch::Tensor& tensor) const {
  if (queue_) tensor.record_stream(c10::cuda::getCurrentCUDAStream(tensor.device().index()));
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

struct SideStream::Queue {};
struct SideStream::Mark::Event {};
struct SideStream::Scope::Held {};

SideStream::SideStream(const torch::Device&) {}
SideStream::~SideStream() = default;
SideStream::Scope::Scope(SideStream&) {}
SideStream::Scope::~Scope() = default;
SideStream::Mark SideStream::mark() const { return {}; }
void SideStream::Mark::wait() const {}
void SideStream::give_to_current(const torch::Tensor&) const {}

}  // namespace tutti::speech
#endif
