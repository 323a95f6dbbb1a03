#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "tests/trainer/nccl_standin/device.h"

namespace nccl_standin {
namespace {

void must(int result, const char* what) {
  if (result == 0) return;
  std::fprintf(stderr, "nccl stand-in: %s failed with CUDA's error %d\n", what, result);
  std::_Exit(97);
}

using OnWord = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// The driver's library is there on machines with a GPU only, so it is not linked.
OnWord driver_function(const char* name) {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  void* function = driver ? ::dlsym(driver, name) : nullptr;
  must(function ? 0 : -1, name);
  return reinterpret_cast<OnWord>(function);
}

CUdeviceptr on_device(Word* word) {
  void* there = nullptr;
  must(cudaHostGetDevicePointer(&there, word, 0), "cudaHostGetDevicePointer");
  return reinterpret_cast<CUdeviceptr>(there);
}

}  // namespace

int current_device() {
  int device = -1;
  must(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

void attach(void* memory, std::size_t num_bytes) {
  must(cudaHostRegister(memory, num_bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
       "cudaHostRegister");
}

void copy(void* to, const void* from, std::size_t num_bytes, Stream stream) {
  if (num_bytes == 0) return;
  must(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
       "cudaMemcpyAsync");
}

void write(Word* word, Word value, Stream stream) {
  static const OnWord write_value = driver_function("cuStreamWriteValue32_v2");
  must(write_value(static_cast<CUstream>(stream), on_device(word), value, 0),
       "cuStreamWriteValue32");
}

void wait(Word* word, Word wanted, Stream stream) {
  static const OnWord wait_value = driver_function("cuStreamWaitValue32_v2");
  must(wait_value(static_cast<CUstream>(stream), on_device(word), wanted, CU_STREAM_WAIT_VALUE_GEQ),
       "cuStreamWaitValue32");
}

std::string fault_of_buffer(const void* buffer, int device) {
  cudaPointerAttributes found{};
  must(cudaPointerGetAttributes(&found, buffer), "cudaPointerGetAttributes");
  if (found.type != cudaMemoryTypeDevice) return "is no memory of a GPU";
  if (found.device != device)
    return "is on GPU " + std::to_string(found.device) + ", the communicator on GPU " +
           std::to_string(device);
  return "";
}

std::string fault_of_stream(Stream stream) {
  if (!stream) return "the default stream waits for all others";
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  must(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capturing),
       "cudaStreamIsCapturing");
  return capturing == cudaStreamCaptureStatusNone ? "" : "the stream is being captured";
}

}  // namespace nccl_standin
