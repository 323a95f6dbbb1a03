#include "tutti/speech/models/step_graph.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>

#include "tutti/speech/ops/gpu/capture.h"
#endif

namespace tutti::speech {

#ifdef TUTTI_WITH_CUDA_KERNELS

struct StepGraph::Recording {
  at::cuda::CUDAGraph graph;
  torch::Tensor out;
};

namespace {

// The memory recordings draw from. Torch gives a pool back only when no recording refers to it, and
// then by freeing it on the device, which is slow: an empty recording keeps this one.
struct Pool {
  PoolId id = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph keeper;
};

// Records `step` on a stream of its own: the default stream cannot be recorded.
void record(at::cuda::CUDAGraph& graph, PoolId pool, const std::function<void()>& step) {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  at::cuda::CUDAEvent before, after;
  before.record(current);
  before.block(side);
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    capture(graph, pool, step);
  }
  after.record(side);
  after.block(current);
}

// One for each thread: recordings of two threads must not share memory.
PoolId pool_of(const torch::Device& device) {
  thread_local std::map<c10::DeviceIndex, std::unique_ptr<Pool>> pools;
  std::unique_ptr<Pool>& pool = pools[device.index()];
  if (!pool) {
    pool = std::make_unique<Pool>();
    torch::Tensor cell = torch::zeros({1}, torch::TensorOptions(device));
    record(pool->keeper, pool->id, [&] { cell.add_(1); });
  }
  return pool->id;
}

}  // namespace

torch::Tensor StepGraph::run(const torch::Device& device,
                             const std::function<torch::Tensor()>& step) {
  // The first run makes what is made once: handles, workspaces, tables.
  if (!device.is_cuda() || runs_++ == 0) return step();
  const c10::cuda::CUDAGuard guard(device);
  if (!recording_) {
    auto recording = std::make_unique<Recording>();
    record(recording->graph, pool_of(c10::Device(c10::kCUDA, c10::cuda::current_device())),
           [&] { recording->out = step(); });
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
