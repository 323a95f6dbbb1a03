#include "tutti/speech/models/step_graph.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <utility>

#include "tutti/speech/ops/gpu/capture.h"
#endif

namespace tutti::speech {

#ifdef TUTTI_WITH_CUDA_KERNELS

struct StepGraph::Recording {
  at::cuda::CUDAGraph graph;
  torch::Tensor out;
};

namespace {

// The memory recordings draw from, and the stream they are made on: the default stream cannot be recorded, and
// each stream that multiplies matrices keeps 32 MiB for that. Torch gives a pool back only when no recording
// refers to it, and then by freeing it on the device, which is slow: an empty recording keeps this one.
struct Pool {
  PoolId id = at::cuda::graph_pool_handle();
  c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph keeper;

  void record(at::cuda::CUDAGraph& graph, const std::function<void()>& step) const {
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream();
    at::cuda::CUDAEvent before, after;
    before.record(current);
    before.block(side);
    {
      const c10::cuda::CUDAStreamGuard guard(side);
      capture(graph, id, step);
    }
    after.record(side);
    after.block(current);
  }
};

// One for each thread, device and stream: what is replayed on two streams at a time must not share memory.
const Pool& pool_here() {
  thread_local std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::unique_ptr<Pool>> pools;
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream();
  std::unique_ptr<Pool>& pool = pools[{current.device_index(), current.id()}];
  if (!pool) {
    pool = std::make_unique<Pool>();
    torch::Tensor cell = torch::zeros({1}, torch::TensorOptions(current.device()));
    pool->record(pool->keeper, [&] { cell.add_(1); });
  }
  return *pool;
}

}  // namespace

torch::Tensor StepGraph::run(const torch::Device& device,
                             const std::function<torch::Tensor()>& step) {
  // The first run makes what is made once: handles, workspaces, tables.
  if (!device.is_cuda() || runs_++ == 0) return step();
  const c10::cuda::CUDAGuard guard(device);
  if (!recording_) {
    auto recording = std::make_unique<Recording>();
    pool_here().record(recording->graph, [&] { recording->out = step(); });
    recording_ = std::move(recording);
  }
  recording_->graph.replay();
  return recording_->out;
}

#else

struct StepGraph::Recording {};

torch::Tensor StepGraph::run(const torch::Device&, const std::function<torch::Tensor()>& step) {
  return step();
}

#endif

StepGraph::StepGraph() = default;
StepGraph::~StepGraph() = default;
StepGraph::StepGraph(StepGraph&&) noexcept = default;
StepGraph& StepGraph::operator=(StepGraph&&) noexcept = default;

void StepGraph::forget() {
  recording_.reset();
  runs_ = 0;
}

}  // namespace tutti::speech
