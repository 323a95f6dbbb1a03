// NCCL, loaded at run time, so that one binary also runs where there is none. Its C API is small
// and stable; the handful of types below is all we need of its header.
//
// Communicators are non-blocking: a peer that never comes leaves calls "in progress" instead of
// stuck, and abort() (called by the side channel when a rank is lost) releases kernels that wait.
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/trainer/collectives/nccl.h"

#ifdef TUTTI_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstring>
#include <thread>
#endif

namespace tutti::trainer {

#ifdef TUTTI_WITH_CUDA
namespace {

using Comm = void*;
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInProgress = 7;
constexpr int kSum = 0;
struct UniqueId {
  char bytes[128];
};
// The oldest layout with `blocking` (NCCL 2.14); newer libraries read as much as `size` says.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

struct Api {
  Result (*get_unique_id)(UniqueId*);
  Result (*init_rank_config)(Comm*, int, UniqueId, int, Config*);
  Result (*get_async_error)(Comm, Result*);
  Result (*abort)(Comm);
  const char* (*get_error_string)(Result);
  Result (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t);
  Result (*broadcast)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t);
  Result (*all_gather)(const void*, void*, std::size_t, int, Comm, cudaStream_t);
  Result (*reduce_scatter)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t);
};

Api load_api() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    throw ConfigError(
        fmt::format("cannot load NCCL: {}", ::dlerror()),
        "install NCCL (libnccl2), or set LD_LIBRARY_PATH to the folder of libnccl.so.2");
  Api api{};
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
    if (!function) throw ConfigError(fmt::format("NCCL has no {}", name), "use NCCL 2.14 or newer");
  };
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.init_rank_config, "ncclCommInitRankConfig");
  find(api.get_async_error, "ncclCommGetAsyncError");
  find(api.abort, "ncclCommAbort");
  find(api.get_error_string, "ncclGetErrorString");
  find(api.all_reduce, "ncclAllReduce");
  find(api.broadcast, "ncclBroadcast");
  find(api.all_gather, "ncclAllGather");
  find(api.reduce_scatter, "ncclReduceScatter");
  return api;
}

int nccl_type(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return 0;
    case at::kByte:
      return 1;
    case at::kBool:
      return 1;
    case at::kInt:
      return 2;
    case at::kLong:
      return 4;
    case at::kHalf:
      return 6;
    case at::kFloat:
      return 7;
    case at::kDouble:
      return 8;
    case at::kBFloat16:
      return 9;
    default:
      throw InternalError(fmt::format("nccl: no type for {}", c10::toString(type)));
  }
}

// Done when queued: whoever uses the result on the current stream waits for the event there.
class NcclWork final : public Work {
 public:
  NcclWork(at::cuda::CUDAEvent event, std::atomic<bool>& aborted)
      : event_(std::move(event)), aborted_(aborted) {}
  bool wait_for(std::chrono::milliseconds) override {
    if (aborted_) throw CommError("nccl: aborted because another rank failed");
    event_.block(c10::cuda::getCurrentCUDAStream());
    return true;
  }

 private:
  at::cuda::CUDAEvent event_;
  std::atomic<bool>& aborted_;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(KeyValue& store, int rank, int world_size, at::Device device, Control& control)
      : Collectives(rank, world_size),
        api_(load_api()),
        device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
    c10::cuda::CUDAGuard guard(device_);
    UniqueId id{};
    if (rank == 0) {
      check(api_.get_unique_id(&id), "ncclGetUniqueId");
      store.set("nccl/id", std::string(id.bytes, sizeof(id.bytes)));
    } else {
      const std::string bytes = store.get("nccl/id");
      std::memcpy(id.bytes, bytes.data(), std::min(bytes.size(), sizeof(id.bytes)));
    }
    Config config;
    const Result result = api_.init_rank_config(&comm_, world_size, id, rank, &config);
    if (result != kSuccess && result != kInProgress) check(result, "ncclCommInitRankConfig");
    while (state() == kInProgress) {
      control.check_peers(std::chrono::milliseconds(0));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    check(state(), "ncclCommInitRankConfig");
  }
  ~NcclCollectives() override {
    // Abort also frees; everything queued was waited for by the loop.
    abort();
  }

  WorkPtr all_reduce(at::Tensor flat) override {
    return enqueue(flat, flat, [&] {
      return api_.all_reduce(flat.data_ptr(), flat.data_ptr(), numel(flat),
                             nccl_type(flat.scalar_type()), kSum, comm_, stream_.stream());
    });
  }
  WorkPtr broadcast(at::Tensor flat, int root) override {
    return enqueue(flat, flat, [&] {
      return api_.broadcast(flat.data_ptr(), flat.data_ptr(), numel(flat),
                            nccl_type(flat.scalar_type()), root, comm_, stream_.stream());
    });
  }
  WorkPtr all_gather(at::Tensor out, at::Tensor in) override {
    return enqueue(out, in, [&] {
      return api_.all_gather(in.data_ptr(), out.data_ptr(), numel(in), nccl_type(in.scalar_type()),
                             comm_, stream_.stream());
    });
  }
  WorkPtr reduce_scatter(at::Tensor out, at::Tensor in) override {
    return enqueue(out, in, [&] {
      return api_.reduce_scatter(in.data_ptr(), out.data_ptr(), numel(out),
                                 nccl_type(in.scalar_type()), kSum, comm_, stream_.stream());
    });
  }
  void abort() noexcept override {
    if (!aborted_.exchange(true)) api_.abort(comm_);
  }
  std::string name() const override { return "nccl"; }

 private:
  static std::size_t numel(const at::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }
  Result state() {
    Result state = kSuccess;
    check(api_.get_async_error(comm_, &state), "ncclCommGetAsyncError");
    return state;
  }
  void check(Result result, const char* what) {
    if (aborted_) throw CommError("nccl: aborted because another rank failed");
    if (result != kSuccess && result != kInProgress)
      throw CommError(fmt::format("{}: {}", what, api_.get_error_string(result)),
                      "set NCCL_DEBUG=INFO and look at the first warning");
  }

  template <class Call>
  WorkPtr enqueue(const at::Tensor& out, const at::Tensor& in, Call call) {
    c10::cuda::CUDAGuard guard(device_);
    at::cuda::CUDAEvent ready;
    ready.record(c10::cuda::getCurrentCUDAStream());
    ready.block(stream_);
    check(call(), "nccl");
    while (state() == kInProgress) std::this_thread::yield();
    check(state(), "nccl");
    // The caching allocator must not hand the memory out again before our stream is done with it.
    out.record_stream(stream_.unwrap());
    if (!in.is_same(out)) in.record_stream(stream_.unwrap());
    at::cuda::CUDAEvent done;
    done.record(stream_);
    return std::make_shared<NcclWork>(std::move(done), aborted_);
  }

  Api api_;
  at::Device device_;
  c10::cuda::CUDAStream stream_;
  Comm comm_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<Collectives> make_nccl_collectives(KeyValue& store, int rank, int world_size,
                                                   at::Device device, Control& control) {
  return std::make_unique<NcclCollectives>(store, rank, world_size, device, control);
}

#else

std::unique_ptr<Collectives> make_nccl_collectives(KeyValue&, int, int, at::Device, Control&) {
  throw ConfigError("this build of tutti has no CUDA, so there is no NCCL",
                    "set trainer.accelerator: cpu, or build with TUTTI_TORCH_ROOT of a CUDA torch");
}

#endif

}  // namespace tutti::trainer
