// Kernels that begin before the one before them has ended: what they read of it they read after
// wait_for_previous(), which every block calls. Elsewhere than on compute capability 9 and later
// they are ordinary kernels.
#pragma once

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {

__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

inline bool can_begin_early() {
  static const bool can = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
  }();
  return can;
}

// How such a kernel is launched; `cluster` blocks next to each other share their memory (cluster.cuh).
class EarlyLaunch {
 public:
  EarlyLaunch(dim3 grid, dim3 block, std::size_t shared, Stream stream, unsigned cluster = 1) {
    config_.gridDim = grid;
    config_.blockDim = block;
    config_.dynamicSmemBytes = shared;
    config_.stream = stream;
    config_.attrs = attributes_;
    if (cluster > 1) {
      cudaLaunchAttribute& together = attributes_[config_.numAttrs++];
      together.id = cudaLaunchAttributeClusterDimension;
      together.val.clusterDim.x = cluster;
      together.val.clusterDim.y = together.val.clusterDim.z = 1;
    }
    if (can_begin_early()) {
      cudaLaunchAttribute& early = attributes_[config_.numAttrs++];
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  EarlyLaunch(const EarlyLaunch&) = delete;
  EarlyLaunch& operator=(const EarlyLaunch&) = delete;

  const cudaLaunchConfig_t& config() const { return config_; }
  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), Arguments... arguments) const {
    cudaLaunchKernelEx(&config_, kernel, static_cast<Parameters>(arguments)...);
  }

 private:
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_ = {};
};

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared,
                  Stream stream, Arguments... arguments) {
  EarlyLaunch(grid, block, shared, stream).run(kernel, arguments...);
}

}  // namespace tutti::speech::cuda
