// Blocks that run at once and reach each other's shared memory: clusters, of compute capability 9 on.
//
// A block may write into another one's memory when all have begun, and none may end while another
// still writes into it: so there is a cluster_arrive() at the start of a kernel, a cluster_wait()
// before the first such write, and a cluster_sync() after the last one.
#pragma once

#include "tutti/speech/kernels/early.cuh"

namespace tutti::speech::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same place in the shared memory of another block of the cluster.
template <class T>
__device__ inline T* in_block(T* mine, int rank) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(rank));
  return there;
}
#endif

// Whether the GPU can run a kernel so.
template <class Kernel>
bool can_cluster(Kernel kernel, const EarlyLaunch& launch) {
  if (!can_begin_early()) return false;
  allow_shared(kernel, launch.config().dynamicSmemBytes);
  cudaLaunchConfig_t config = launch.config();
  config.numAttrs = 1;  // the cluster; when the kernel may begin does not matter here
  int clusters = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // is answered here
  return error == cudaSuccess && clusters > 0;
}

}  // namespace tutti::speech::cuda
