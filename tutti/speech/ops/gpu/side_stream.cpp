#include "tutti/speech/ops/gpu/side_stream.h"

#ifdef TUTTI_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <mutex>

namespace tutti::speech {

struct SideStream::Queue {
  c10::cuda::CUDAStream stream;
  std::mutex mutex;
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

void SideStream::give_to_current(const torch::Tensor& tensor) const {
  if (queue_) tensor.record_stream(c10::cuda::getCurrentCUDAStream(tensor.device().index()));
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

struct SideStream::Queue {};
struct SideStream::Scope::Held {};

SideStream::SideStream(const torch::Device&) {}
SideStream::~SideStream() = default;
SideStream::Scope::Scope(SideStream&) {}
SideStream::Scope::~Scope() = default;
void SideStream::give_to_current(const torch::Tensor&) const {}

}  // namespace tutti::speech
#endif
