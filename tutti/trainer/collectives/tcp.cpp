// Collectives over launch's TCP ring, for libtorches without Gloo (pip wheels).
//
// One thread runs the operations in the order in which they were started; the ring itself notices
// lost ranks through the control plane.
#include <torch/torch.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/launch/ring.h"
#include "tutti/trainer/collectives/collectives.h"

namespace tutti::trainer {
namespace {

launch::DType ring_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return launch::DType::kFloat32;
    case at::kDouble:
      return launch::DType::kFloat64;
    case at::kLong:
      return launch::DType::kInt64;
    case at::kBFloat16:
      return launch::DType::kBFloat16;
    default:
      throw InternalError(std::string("tcp collectives cannot sum ") + at::toString(type));
  }
}

class RingWork final : public Work {
 public:
  bool wait_for(std::chrono::milliseconds limit) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return done_; })) return false;
    if (error_) std::rethrow_exception(error_);
    return true;
  }
  void finish(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

class TcpCollectives final : public Collectives {
 public:
  TcpCollectives(std::shared_ptr<launch::ControlPlane> plane, int rank, int world_size)
      : Collectives(rank, world_size),
        plane_(std::move(plane)),
        ring_(*plane_),
        thread_([this] { run(); }) {}

  ~TcpCollectives() override {
    abort();
    thread_.join();
  }

  WorkPtr all_reduce(at::Tensor flat) override {
    return start([this, flat, type = ring_type(flat.scalar_type())] {
      ring_.all_reduce_sum(type, flat.data_ptr(), size(flat));
    });
  }
  WorkPtr broadcast(at::Tensor flat, int root) override {
    return start([this, flat, root] { ring_.broadcast(flat.data_ptr(), flat.nbytes(), root); });
  }
  WorkPtr all_gather(at::Tensor out, at::Tensor in) override {
    return start([this, out, in] { ring_.all_gather(in.data_ptr(), out.data_ptr(), in.nbytes()); });
  }
  WorkPtr reduce_scatter(at::Tensor out, at::Tensor in) override {
    return start([this, out, scratch = in.clone(), type = ring_type(in.scalar_type())] {
      ring_.reduce_scatter_sum(type, scratch.data_ptr(), out.data_ptr(), size(out));
    });
  }
  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  std::string name() const override { return "tcp"; }

 private:
  struct Operation {
    std::function<void()> run;
    std::shared_ptr<RingWork> work;
  };

  static std::size_t size(const at::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }

  WorkPtr start(std::function<void()> run) {
    auto work = std::make_shared<RingWork>();
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(run), work});
    changed_.notify_all();
    return work;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) break;
      const Operation operation = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        operation.run();
      } catch (const std::exception&) {
        error = std::current_exception();
      }
      operation.work->finish(error);
      lock.lock();
    }
    for (const Operation& operation : queue_)
      operation.work->finish(std::make_exception_ptr(CommError("tcp: given up")));
  }

  std::shared_ptr<launch::ControlPlane> plane_;
  launch::Ring ring_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace

std::unique_ptr<Collectives> make_tcp_collectives(std::shared_ptr<launch::ControlPlane> plane) {
  const int rank = plane->rank().rank, world_size = plane->rank().world_size;
  return std::make_unique<TcpCollectives>(std::move(plane), rank, world_size);
}

}  // namespace tutti::trainer
