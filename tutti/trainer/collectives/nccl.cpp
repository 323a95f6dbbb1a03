// NCCL, loaded at run time, so that one binary also runs where there is none. Its C API is small
// and stable; the handful of types below is all we need of its header.
//
// Communicators are non-blocking: a peer that never comes leaves calls "in progress" instead of
// stuck, and abort() (called by the side channel when a rank is lost) releases kernels that wait.
//
// A rank that is alive but does not come leaves kernels waiting, and hosts that wait for their GPU
// (for a loss, a norm) ask nobody. So each communicator has a thread that looks how old its oldest
// unfinished operation is; after trainer.timeout it asks the side channel who is missing, which ends
// the run on all ranks.
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
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
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
  const char* chosen = std::getenv("TUTTI_NCCL_LIBRARY");
  void* library = ::dlopen(chosen && *chosen ? chosen : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw ConfigError(fmt::format("cannot load NCCL: {}", ::dlerror()),
                      "install NCCL (libnccl2), or set LD_LIBRARY_PATH to the folder of "
                      "libnccl.so.2, or TUTTI_NCCL_LIBRARY to the file");
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
  NcclWork(std::shared_ptr<at::cuda::CUDAEvent> event, std::atomic<bool>& aborted)
      : event_(std::move(event)), aborted_(aborted) {}
  bool wait_for(std::chrono::milliseconds) override {
    if (aborted_) throw CommError("nccl: aborted because another rank failed");
    event_->block(c10::cuda::getCurrentCUDAStream());
    return true;
  }

 private:
  std::shared_ptr<at::cuda::CUDAEvent> event_;  // shared with the overseer
  std::atomic<bool>& aborted_;
};

// Looks after operations that were queued: one that has not ended after the control's timeout ends
// the run.
class Overseer {
 public:
  Overseer(Control& control, at::Device device)
      : control_(control), device_(device), thread_([this] { run(); }) {}
  ~Overseer() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void add(std::string what, std::shared_ptr<at::cuda::CUDAEvent> done) {
    std::lock_guard lock(mutex_);
    queued_.push_back({std::move(what), std::move(done), Clock::now()});
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Queued {
    std::string what;
    std::shared_ptr<at::cuda::CUDAEvent> done;
    Clock::time_point since;
  };

  void run() {
    try {
      oversee();
    } catch (const std::exception&) {  // of the GPU itself, which the loop's next call reports
    }
  }
  void oversee() {
    const c10::cuda::CUDAGuard guard(device_);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return stopping_; })) {
      while (!queued_.empty() && queued_.front().done->query()) queued_.pop_front();
      if (queued_.empty() || Clock::now() - queued_.front().since < control_.timeout()) continue;
      const std::string what = queued_.front().what;
      lock.unlock();
      try {
        control_.check_peers(std::chrono::milliseconds(0));
        control_.still_waiting(what);
      } catch (const std::exception& error) {
        control_.fail(error.what());  // all ranks hear it, and abort what they wait for
      }
      return;
    }
  }

  Control& control_;
  at::Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;      // guarded by mutex_
  std::deque<Queued> queued_;  // guarded by mutex_
  std::thread thread_;         // last: it uses the others
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(KeyValue& store, int rank, int world_size, at::Device device, Control& control)
      : Collectives(rank, world_size),
        api_(load_api()),
        control_(control),
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
    check(api_.init_rank_config(&comm_, world_size, id, rank, &config), "ncclCommInitRankConfig");
    while (state() == kInProgress) {
      control.check_peers(std::chrono::milliseconds(0));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    check(state(), "ncclCommInitRankConfig");
    overseer_ = std::make_unique<Overseer>(control, device_);
  }
  ~NcclCollectives() override {
    overseer_.reset();
    // Abort also frees; everything queued was waited for by the loop.
    abort();
  }

  WorkPtr all_reduce(at::Tensor flat) override {
    return enqueue("all_reduce", flat, flat, [&] {
      return api_.all_reduce(flat.data_ptr(), flat.data_ptr(), numel(flat),
                             nccl_type(flat.scalar_type()), kSum, comm_, stream_.stream());
    });
  }
  WorkPtr broadcast(at::Tensor flat, int root) override {
    return enqueue("broadcast", flat, flat, [&] {
      return api_.broadcast(flat.data_ptr(), flat.data_ptr(), numel(flat),
                            nccl_type(flat.scalar_type()), root, comm_, stream_.stream());
    });
  }
  WorkPtr all_gather(at::Tensor out, at::Tensor in) override {
    return enqueue("all_gather", out, in, [&] {
      return api_.all_gather(in.data_ptr(), out.data_ptr(), numel(in), nccl_type(in.scalar_type()),
                             comm_, stream_.stream());
    });
  }
  WorkPtr reduce_scatter(at::Tensor out, at::Tensor in) override {
    return enqueue("reduce_scatter", out, in, [&] {
      return api_.reduce_scatter(in.data_ptr(), out.data_ptr(), numel(out),
                                 nccl_type(in.scalar_type()), kSum, comm_, stream_.stream());
    });
  }
  void abort() noexcept override {
    // Not in the middle of a call of the loop's thread, none of which waits for another rank.
    std::lock_guard lock(calling_);
    if (!aborted_.exchange(true) && comm_) api_.abort(comm_);
  }
  std::string name() const override { return "nccl"; }

 private:
  static std::size_t numel(const at::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }
  Result state() {
    Result state = kSuccess;
    call([&] { return api_.get_async_error(comm_, &state); }, "ncclCommGetAsyncError");
    return state;
  }
  // Abort frees the communicator, so nothing may be called after it, nor beside it.
  template <class Call>
  void call(Call function, const char* what) {
    Result result = kSuccess;
    {
      std::lock_guard lock(calling_);
      if (!aborted_) result = function();
    }
    check(result, what);
  }
  void check(Result result, const char* what) {
    if (aborted_) {
      control_.check_peers(std::chrono::seconds(5));  // knows which rank, and why
      throw CommError("nccl: aborted because another rank failed");
    }
    if (result != kSuccess && result != kInProgress)
      throw CommError(fmt::format("{}: {}", what, api_.get_error_string(result)),
                      "set NCCL_DEBUG=INFO and look at the first warning");
  }

  template <class Call>
  WorkPtr enqueue(const char* what, const at::Tensor& out, const at::Tensor& in, Call queues) {
    c10::cuda::CUDAGuard guard(device_);
    at::cuda::CUDAEvent ready;
    ready.record(c10::cuda::getCurrentCUDAStream());
    ready.block(stream_);
    call(queues, what);
    while (state() == kInProgress) std::this_thread::yield();
    check(state(), what);
    // The caching allocator must not hand the memory out again before our stream is done with it.
    out.record_stream(stream_.unwrap());
    if (!in.is_same(out)) in.record_stream(stream_.unwrap());
    const auto done = std::make_shared<at::cuda::CUDAEvent>();
    done->record(stream_);
    overseer_->add(fmt::format("{} of {} numbers", what, numel(in)), done);
    return std::make_shared<NcclWork>(done, aborted_);
  }

  Api api_;
  Control& control_;
  at::Device device_;
  c10::cuda::CUDAStream stream_;
  std::mutex calling_;  // the side channel's thread aborts
  Comm comm_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::unique_ptr<Overseer> overseer_;
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
