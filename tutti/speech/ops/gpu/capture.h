// What records CUDA graphs share. Internal to speech/.
#pragma once

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <ATen/cuda/CUDAGraph.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "tutti/trainer/autocast.h"

namespace tutti::speech {

using PoolId = decltype(at::cuda::graph_pool_handle());

// Records what `work` launches on the current stream, which must not be the default one.
inline void capture(at::cuda::CUDAGraph& graph, PoolId pool, const std::function<void()>& work) {
  // Other threads may allocate meanwhile: a loader, the next batch, another search.
  graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {  // most likely out of memory; what has begun is ended first
    try {
      graph.capture_end();
    } catch (const std::exception&) {  // the first error says more
    }
    throw;
  }
  graph.capture_end();
}

// Autograd's nodes remember the stream on which they were made. Those of the parameters may live
// on, on the stream of the training loop, which a recording must not touch: it gets others.
class OtherAccumulators {
 public:
  explicit OtherAccumulators(const std::vector<torch::Tensor>& parameters)
      : parameters_(parameters) {
    for (const torch::Tensor& parameter : parameters_) {
      kept_.push_back(torch::autograd::impl::try_get_grad_accumulator(parameter));
      torch::autograd::impl::set_grad_accumulator(parameter, {});
    }
  }
  ~OtherAccumulators() {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      torch::autograd::impl::set_grad_accumulator(parameters_[i], kept_[i]);
  }
  OtherAccumulators(const OtherAccumulators&) = delete;
  OtherAccumulators& operator=(const OtherAccumulators&) = delete;

 private:
  const std::vector<torch::Tensor>& parameters_;
  std::vector<std::shared_ptr<torch::autograd::Node>> kept_;
};

// The backward pass runs outside of autocast, as the loop's does.
class WithoutAutocast {
 public:
  WithoutAutocast() { trainer::set_autocast(at::kCUDA, false); }
  ~WithoutAutocast() { trainer::set_autocast(at::kCUDA, was_on_); }
  WithoutAutocast(const WithoutAutocast&) = delete;
  WithoutAutocast& operator=(const WithoutAutocast&) = delete;

 private:
  bool was_on_ = trainer::autocast_on(at::kCUDA);
};

// Casts made before must not be read by a recording, nor a recording's casts after it.
class WithoutCastCache {
 public:
  WithoutCastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutCastCache() { at::autocast::set_autocast_cache_enabled(was_on_); }
  WithoutCastCache(const WithoutCastCache&) = delete;
  WithoutCastCache& operator=(const WithoutCastCache&) = delete;

 private:
  bool was_on_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace tutti::speech
#endif
