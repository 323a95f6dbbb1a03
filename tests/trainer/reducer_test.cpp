// Our reducer against c10d::Reducer: two ranks as two threads of this process, each with a replica.
#include "tutti/trainer/strategies/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <barrier>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tutti/core/error.h"

#if defined(TUTTI_WITH_GLOO) && TORCH_VERSION_MAJOR == 1
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace tutti::trainer {
namespace {

constexpr int kWorld = 2;

// The side channel between threads.
struct Meeting {
  std::barrier<> barrier{kWorld};
  std::vector<std::string> blobs = std::vector<std::string>(kWorld);
};

class ThreadControl final : public Control {
 public:
  ThreadControl(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return kWorld; }
  std::vector<std::string> all_gather(const std::string&, const std::string& blob) override {
    meeting_.blobs[static_cast<std::size_t>(rank_)] = blob;
    meeting_.barrier.arrive_and_wait();
    std::vector<std::string> all = meeting_.blobs;
    meeting_.barrier.arrive_and_wait();
    return all;
  }
  void set_phase(const std::string&) override {}
  void fail(const std::string&) noexcept override {}
  void check_peers(std::chrono::milliseconds) override {}
  void still_waiting(const std::string& what) override { throw CommError(what); }
  void finish() override {}

 private:
  Meeting& meeting_;
  int rank_;
};

class MapStore final : public KeyValue {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return values_.count(key) > 0; });
    return values_[key];
  }
  std::int64_t add(const std::string& key, std::int64_t by) override {
    std::lock_guard lock(mutex_);
    return counters_[key] += by;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counters_;
};

// `tied` is used twice; `rare` only by rank 1 (or by nobody).
struct Net {
  torch::Tensor wide = torch::randn({300, 1000});
  torch::Tensor tied = torch::randn({300, 300}) / 17;
  torch::Tensor rare = torch::randn({300});
  torch::Tensor never = torch::randn({5});
  NamedTensors named() {
    return {{"wide", wide}, {"tied", tied}, {"rare", rare}, {"never", never}};
  }
  Net() {
    for (auto& [name, p] : named()) p.set_requires_grad(true);
  }
  Net copy() const {
    Net other;
    torch::NoGradGuard no_grad;
    other.wide.copy_(wide);
    other.tied.copy_(tied);
    other.rare.copy_(rare);
    other.never.copy_(never);
    return other;
  }
  torch::Tensor loss(const torch::Tensor& x, bool use_rare, bool use_never) const {
    auto h = torch::tanh(torch::matmul(x, wide.t()));
    h = torch::matmul(torch::tanh(torch::matmul(h, tied)), tied);
    if (use_rare) h = h * rare;
    auto out = h.square().mean();
    return use_never ? out + never.sum() : out;
  }
};

std::unique_ptr<c10d::Reducer> torch_reducer(Net& net, bool find_unused,
                                             const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, p] : net.named()) parameters.push_back(p);
  const std::vector<bool> sparse(parameters.size(), false);
  auto [buckets, limits] =
      c10d::compute_bucket_assignment_by_size(parameters, {1 << 20, 25 << 20}, sparse);
  std::reverse(buckets.begin(), buckets.end());
  std::reverse(limits.begin(), limits.end());
  return std::make_unique<c10d::Reducer>(parameters, buckets, limits, group, sparse, 25 << 20,
                                         find_unused, false,
                                         std::unordered_map<std::size_t, std::string>{}, 1 << 20);
}

struct Case {
  bool find_unused = false;
  bool rare_on_rank_zero = true;
  bool never_used = true;
  int micro_batches = 1;
};

// Runs three steps on both reducers and compares all gradients on both ranks.
void compare(const Case& c) {
  Meeting meeting;
  auto store = std::make_shared<MapStore>();
  auto torch_store = c10::make_intrusive<c10d::HashStore>();
  torch::manual_seed(5);
  const Net start;
  std::vector<torch::Tensor> inputs;
  for (int i = 0; i < 3 * kWorld * c.micro_batches; ++i) inputs.push_back(torch::randn({4, 1000}));

  const auto run = [&](int rank) {
    ThreadControl control(meeting, rank);
    const auto collectives = make_gloo_collectives(store, rank, kWorld, "127.0.0.1");
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(torch_store, rank, kWorld, options);
    Net ours = start.copy(), theirs = start.copy();
    Reducer reducer(ours.named(), *collectives, control,
                    {.first_bucket_bytes = 1 << 18, .find_unused = c.find_unused});
    const auto oracle = torch_reducer(theirs, c.find_unused, group);
    const bool use_rare = rank == 1 || c.rare_on_rank_zero;
    for (int step = 0; step < 3; ++step) {
      for (auto* net : {&ours, &theirs})
        for (auto& [name, p] : net->named()) p.mutable_grad().reset();
      for (int m = 0; m < c.micro_batches; ++m) {
        const auto& x =
            inputs[static_cast<std::size_t>((step * kWorld + rank) * c.micro_batches + m)];
        const bool last = m + 1 == c.micro_batches;
        if (last) reducer.arm();
        ours.loss(x, use_rare, c.never_used).backward();
        if (last) reducer.finish(true);

        oracle->rebuild_buckets();
        oracle->prepare_for_forward();
        const auto loss = theirs.loss(x, use_rare, c.never_used);
        if (last)
          oracle->prepare_for_backward(c.find_unused ? std::vector<at::Tensor>{loss}
                                                     : std::vector<at::Tensor>{});
        loss.backward();
      }
      const auto a = ours.named(), b = theirs.named();
      for (std::size_t i = 0; i < a.size(); ++i) {
        const auto& ours_grad = a[i].second.grad();
        const auto& their_grad = b[i].second.grad();
        ASSERT_EQ(ours_grad.defined(), their_grad.defined()) << a[i].first;
        if (!ours_grad.defined()) continue;
        // torch divides by the world size, we do not.
        EXPECT_TRUE(torch::allclose(ours_grad / kWorld, their_grad, 1e-6, 1e-9)) << a[i].first;
      }
    }
    EXPECT_GT(reducer.buckets().size(), 1u);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

TEST(Reducer, EqualsTorchOnSharedParameters) { compare({}); }
TEST(Reducer, EqualsTorchWithAccumulation) { compare({.micro_batches = 3}); }
TEST(Reducer, EqualsTorchOnUnusedParameters) {
  compare({.find_unused = true, .rare_on_rank_zero = false, .never_used = false});
}

}  // namespace
}  // namespace tutti::trainer
#endif
