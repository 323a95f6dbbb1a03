#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/trainer/collectives/collectives.h"

#ifdef TUTTI_WITH_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#endif

namespace tutti::trainer {

#ifdef TUTTI_WITH_GLOO
namespace {

// c10d's idea of a store over ours.
class StoreAdapter final : public c10d::Store {
 public:
  explicit StoreAdapter(std::shared_ptr<KeyValue> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(key, std::string(value.begin(), value.end()));
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::string value = store_->get(key);
    return {value.begin(), value.end()};
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return store_->add(key, value);
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) store_->get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }
  // The rest is not used by Gloo's rendezvous.
  std::vector<std::uint8_t> compareSet(const std::string&, const std::vector<std::uint8_t>&,
                                       const std::vector<std::uint8_t>&) override {
    throw InternalError("store: compareSet is not supported");
  }
  bool deleteKey(const std::string&) override { return false; }
  bool check(const std::vector<std::string>& keys) override {
    wait(keys);
    return true;
  }
  std::int64_t getNumKeys() override { throw InternalError("store: getNumKeys is not supported"); }

 private:
  std::shared_ptr<KeyValue> store_;
};

using C10dWork = c10::intrusive_ptr<c10d::Work>;

class GlooWork : public Work {
 public:
  explicit GlooWork(C10dWork work) : work_(std::move(work)) {}
  bool wait_for(std::chrono::milliseconds limit) override {
    try {
      work_->wait(limit);
      return true;
    } catch (const std::exception&) {
      if (!work_->isCompleted()) return false;  // c10d reports its own "timed out" as an exception
    }
    // It failed, or it ended just after the timeout: asked again, it says which.
    try {
      work_->wait(limit);
    } catch (const c10::Error& error) {
      throw CommError(std::string("gloo: ") + error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw CommError(std::string("gloo: ") + error.what());
    }
    return true;
  }

 private:
  C10dWork work_;
};

// (A part of) an all-reduced copy, moved to `out` when it is there.
class SliceWork final : public GlooWork {
 public:
  SliceWork(C10dWork work, at::Tensor out, at::Tensor slice)
      : GlooWork(std::move(work)), out_(std::move(out)), slice_(std::move(slice)) {}
  bool wait_for(std::chrono::milliseconds limit) override {
    if (!GlooWork::wait_for(limit)) return false;
    if (out_.defined()) out_.copy_(slice_.view_as(out_));
    out_ = at::Tensor();
    return true;
  }

 private:
  at::Tensor out_;
  at::Tensor slice_;
};

class GlooCollectives final : public Collectives {
 public:
  GlooCollectives(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                  const std::string& address)
      : Collectives(rank, world_size) {
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(address.empty()
                                   ? c10d::ProcessGroupGloo::createDefaultDevice()
                                   : c10d::ProcessGroupGloo::createDeviceForHostname(address));
    // Not what ends a hang: wait() asks the side channel five times a second.
    options->timeout = std::chrono::minutes(60);
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
  }

  ~GlooCollectives() override {
    // The group's destructor waits for operations under way. With a rank that hangs they never end;
    // then the group is left to the end of the process.
    forget_finished();
    if (!running_.empty()) group_.release();
  }

  // Gloo in libtorch 1.13 has no bfloat16: such numbers are summed as floats, and sent as halves,
  // which nobody computes with.
  WorkPtr all_reduce(at::Tensor flat) override {
    if (flat.scalar_type() == at::kBFloat16) {
      std::vector<at::Tensor> copies{flat.to(at::kFloat)};
      return std::make_shared<SliceWork>(note(group_->allreduce(copies)), flat, copies[0]);
    }
    std::vector<at::Tensor> tensors{flat};
    return std::make_shared<GlooWork>(note(group_->allreduce(tensors)));
  }
  WorkPtr broadcast(at::Tensor flat, int root) override {
    std::vector<at::Tensor> tensors{as_sent(flat)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return std::make_shared<GlooWork>(note(group_->broadcast(tensors, options)));
  }
  // It has neither _allgather_base nor reduce_scatter: lists of views, and an
  // all-reduce whose other parts are thrown away.
  WorkPtr all_gather(at::Tensor out, at::Tensor in) override {
    const auto parts = as_sent(out).view({world_size(), in.numel()});
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int r = 0; r < world_size(); ++r) outputs[0].push_back(parts[r]);
    std::vector<at::Tensor> inputs{as_sent(in).view({in.numel()})};
    return std::make_shared<GlooWork>(note(group_->allgather(outputs, inputs)));
  }
  WorkPtr reduce_scatter(at::Tensor out, at::Tensor in) override {
    auto copy = (in.scalar_type() == at::kBFloat16 ? in.to(at::kFloat) : in.clone())
                    .view({world_size(), out.numel()});
    std::vector<at::Tensor> tensors{copy};
    return std::make_shared<SliceWork>(note(group_->allreduce(tensors)), out, copy[rank()]);
  }
  void abort() noexcept override {}
  std::string name() const override { return "gloo"; }

 private:
  static at::Tensor as_sent(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kBFloat16 ? tensor.view(at::kHalf) : tensor;
  }
  C10dWork note(C10dWork work) {
    forget_finished();
    running_.push_back(work);
    return work;
  }
  void forget_finished() {
    std::erase_if(running_, [](const C10dWork& work) { return work->isCompleted(); });
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::vector<C10dWork> running_;
};

}  // namespace

bool gloo_available() { return true; }

std::unique_ptr<Collectives> make_gloo_collectives(std::shared_ptr<KeyValue> store, int rank,
                                                   int world_size,
                                                   const std::string& interface_address) {
  return std::make_unique<GlooCollectives>(c10::make_intrusive<StoreAdapter>(std::move(store)),
                                           rank, world_size, interface_address);
}

#else

bool gloo_available() { return false; }

std::unique_ptr<Collectives> make_gloo_collectives(std::shared_ptr<KeyValue>, int, int,
                                                   const std::string&) {
  throw ConfigError("this build of libtorch has no Gloo headers", "use process_group_backend: tcp");
}

#endif

}  // namespace tutti::trainer
