// The loop on a GPU: precisions, the fused optimizer, NCCL, out of memory, exact resume, batches
// and gradients that travel beside the computation.
#include <c10/cuda/CUDAFunctions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/trainer/toy.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/trainer/collectives/nccl.h"
#include "tutti/trainer/device_feed.h"
#include "tutti/trainer/loop.h"
#include "tutti/trainer/optim/optimizer.h"
#include "tutti/trainer/strategies/strategy.h"
#include "tutti/trainer/world.h"

namespace tutti::trainer {
namespace {

std::vector<Batch> float_batches(int num_batches, int batch_size) {
  std::vector<Batch> batches = toy::batches(num_batches, batch_size);
  for (Batch& batch : batches)
    for (auto& [name, tensor] : batch.tensors) tensor = tensor.to(torch::kFloat);
  return batches;
}

class InProcess final : public KeyValue {
 public:
  void set(const std::string& key, const std::string& value) override { values_[key] = value; }
  std::string get(const std::string& key) override { return values_.at(key); }
  std::int64_t add(const std::string& key, std::int64_t by) override { return counts_[key] += by; }

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counts_;
};

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    settings.max_epochs = 20;
    settings.num_sanity_val_steps = 0;
    settings.show_progress = false;
    settings.device = "cuda:0";
  }
  void fit_toy(TrainableModel& model, Strategy* other = nullptr) {
    OptimizerSpec spec;
    spec.options.lr = 0.01;
    MemorySource train(float_batches(10, 4), 0, 1);
    FitInputs inputs{.model = model,
                     .train = train,
                     .strategy = other ? *other : *strategy,
                     .control = *control,
                     .settings = settings,
                     .optimizers = {spec}};
    result = fit(inputs);
  }
  at::Tensor fit_and_take_weights(TrainableModel& model, Strategy* other = nullptr) {
    fit_toy(model, other);
    std::vector<at::Tensor> all;
    for (const auto& [name, p] : model.named_parameters())
      all.push_back(p.detach().to(torch::kCPU, torch::kDouble).flatten());
    return at::cat(all);
  }
  static double loss_of(toy::Model& model) {
    torch::NoGradGuard no_grad;
    model.to(torch::kCPU, torch::kFloat);
    double sum = 0;
    for (const Batch& batch : float_batches(10, 4))
      sum += model.training_step(batch).loss.item<double>();
    return sum / 10;
  }

  std::unique_ptr<Control> control = make_local_control();
  std::unique_ptr<Strategy> strategy = make_single_strategy();
  LoopSettings settings;
  FitResult result;
};

TEST_F(Cuda, EveryPrecisionLearnsTheSame) {
  settings.device = "cpu";
  toy::Model on_cpu;
  const at::Tensor expected = fit_and_take_weights(on_cpu);
  settings.device = "cuda:0";
  const std::pair<PrecisionMode, double> tolerances[] = {
      {PrecisionMode::k32, 1e-4}, {PrecisionMode::kBf16Mixed, 0.2}, {PrecisionMode::k16Mixed, 0.2}};
  for (const auto& [mode, tolerance] : tolerances) {
    settings.precision = mode;
    toy::Model model;
    const double before = loss_of(model);
    const at::Tensor weights = fit_and_take_weights(model);
    // 16-mixed may drop a few steps while it looks for its loss scale.
    EXPECT_EQ(result.steps + result.skipped_steps, 200) << to_string(mode);
    EXPECT_GE(result.steps, 190) << to_string(mode);
    EXPECT_LT((weights - expected).abs().max().item<double>(), tolerance) << to_string(mode);
    EXPECT_LT(loss_of(model), before / 2) << to_string(mode);
  }
}

TEST_F(Cuda, GradientsThatAreNotFiniteNeverReachTheWeightsAndEndTheRun) {
  for (const PrecisionMode mode : {PrecisionMode::k32, PrecisionMode::k16Mixed}) {
    settings.precision = mode;
    settings.max_nonfinite_steps = 30;  // more than the loss scale has halves
    toy::BadGradients model(3);
    EXPECT_THROW(fit_toy(model), DataError) << to_string(mode);
    for (const auto& [name, p] : model.named_parameters())
      EXPECT_TRUE(p.isfinite().all().item<bool>()) << name;
  }
}

// The same steps are left out on a CPU and on a GPU, with a loss scale and without.
TEST_F(Cuda, LossesThatAreNotNumbersDropTheSameStepsAsOnACpu) {
  class Sometimes final : public toy::Model {
   public:
    StepOutput training_step(const Batch& batch) override {
      StepOutput out = toy::Model::training_step(batch);
      if (calls_++ % 50 == 7) out.loss = out.loss * std::nan("");
      return out;
    }

   private:
    int calls_ = 0;
  };
  settings.device = "cpu";
  Sometimes on_cpu;
  const at::Tensor expected = fit_and_take_weights(on_cpu);
  ASSERT_EQ(result.skipped_steps, 4);
  settings.device = "cuda:0";
  Sometimes on_gpu;
  EXPECT_LT((fit_and_take_weights(on_gpu) - expected).abs().max().item<double>(), 1e-4);
  EXPECT_EQ(result.skipped_steps, 4);
  settings.precision = PrecisionMode::k16Mixed;
  Sometimes scaled;
  EXPECT_TRUE(fit_and_take_weights(scaled).isfinite().all().item<bool>());
  EXPECT_GE(result.skipped_steps, 4);
  EXPECT_LE(result.skipped_steps, 10);  // the first loss scale may be too large for some
}

TEST_F(Cuda, HalfPrecisionDropsOverflowingStepsAndLowersTheScale) {
  // The first scale, 65536, times a loss of thousands overflows half precision.
  class Steep final : public toy::Model {
   public:
    StepOutput training_step(const Batch& batch) override {
      StepOutput out = toy::Model::training_step(batch);
      out.loss = out.loss * 1e4;
      return out;
    }
  } model;
  settings.precision = PrecisionMode::k16Mixed;
  const at::Tensor weights = fit_and_take_weights(model);
  EXPECT_GT(result.skipped_steps, 0);
  EXPECT_LT(result.skipped_steps, 60);
  EXPECT_TRUE(weights.isfinite().all().item<bool>());
}

TEST_F(Cuda, ResumesBitExactWithDropout) {
  TempFolder folder;
  settings.deterministic = true;
  settings.max_epochs = 3;
  toy::Model whole(0.3);
  const at::Tensor expected = fit_and_take_weights(whole);
  settings.checkpoint_folder = folder.path();
  settings.max_steps = 14;  // in the middle of an epoch
  toy::Model first(0.3);
  fit_and_take_weights(first);
  settings.max_steps = -1;
  toy::Model second(0.3, /*seed=*/1234);
  EXPECT_TRUE(expected.equal(fit_and_take_weights(second)));
  EXPECT_EQ(result.steps, 30);
}

TEST_F(Cuda, OutOfMemoryDropsTheStepOnly) {
  class Hungry final : public toy::Model {
   public:
    StepOutput training_step(const Batch& batch) override {
      if (calls_++ == 5) torch::empty({1LL << 45}, torch::device(torch::kCUDA));
      return toy::Model::training_step(batch);
    }

   private:
    int calls_ = 0;
  } model;
  const at::Tensor weights = fit_and_take_weights(model);
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_TRUE(weights.isfinite().all().item<bool>());
}

TEST_F(Cuda, NcclMovesWhatItShould) {
  InProcess store;
  const auto nccl = make_nccl_collectives(store, 0, 1, at::Device("cuda:0"), *control);
  const at::Tensor x = torch::arange(1000, torch::device(torch::kCUDA).dtype(torch::kFloat));
  const auto finish = [&](const WorkPtr& work) { wait(*work, *control, "a test"); };
  at::Tensor reduced = x.clone(), gathered = torch::zeros_like(x), scattered = torch::zeros_like(x);
  finish(nccl->all_reduce(reduced));
  finish(nccl->broadcast(reduced, 0));
  finish(nccl->all_gather(gathered, x));
  finish(nccl->reduce_scatter(scattered, x));
  for (const at::Tensor& result : {reduced, gathered, scattered}) EXPECT_TRUE(result.equal(x));
}

TEST_F(Cuda, DdpOverNcclEqualsOneRankAlone) {
  toy::Model alone, with_ddp;
  const at::Tensor expected = fit_and_take_weights(alone);
  InProcess store;
  const auto nccl = make_nccl_collectives(store, 0, 1, at::Device("cuda:0"), *control);
  const auto ddp = make_ddp_strategy(*nccl, *control, {});
  EXPECT_LT((fit_and_take_weights(with_ddp, ddp.get()) - expected).abs().max().item<double>(),
            1e-6);
}

// Batches a loader would make: big enough that a copy takes a while, and telling themselves apart.
std::vector<Batch> marked_batches(int count, std::int64_t size) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    Batch batch;
    batch.tensors["x"] = torch::full({size}, i, torch::kFloat);
    batch.tensors["x_lengths"] = torch::full({4}, i, torch::kLong);
    batches.push_back(std::move(batch));
  }
  return batches;
}

TEST_F(Cuda, ClippedUpdatesEqualTheCpus) {
  torch::manual_seed(1);
  NamedTensors on_cpu, on_gpu;
  std::vector<at::Tensor> cpu_gradients, gpu_gradients;
  for (int i = 0; i < 500; ++i) {  // more tensors than one launch of the norm's kernel takes
    const at::Tensor x = torch::randn({1 + i * 7 % 300, 1 + i % 13});
    for (const auto& [device, list, gradients] :
         {std::tuple{at::Device(at::kCPU), &on_cpu, &cpu_gradients},
          std::tuple{at::Device(at::kCUDA), &on_gpu, &gpu_gradients}}) {
      at::Tensor p = x.to(device).clone().requires_grad_();
      p.mutable_grad() = (0.1 * x + 1).to(device);
      gradients->push_back(p.grad());
      list->emplace_back("p" + std::to_string(i), p);
    }
  }
  const double norm = local_squared_norm(cpu_gradients).sqrt().item<double>();
  EXPECT_NEAR(local_squared_norm(gpu_gradients).sqrt().item<double>() / norm, 1, 1e-6);

  for (const auto kind : {OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    OptimizerOptions options = default_options(kind);
    options.weight_decay = 0.1;
    const auto cpu = make_optimizer(options, on_cpu), gpu = make_optimizer(options, on_gpu);
    for (int step = 0; step < 3; ++step) {
      cpu->step(1e-2, 0.25 * 0.5);
      gpu->step(1e-2, 0.25 * 0.5);
      for (std::size_t i = 0; i < on_cpu.size(); ++i)  // steps may have changed them
        on_gpu[i].second.mutable_grad() = on_cpu[i].second.grad().to(at::kCUDA);
    }
    for (std::size_t i = 0; i < on_cpu.size(); ++i)
      EXPECT_TRUE(torch::allclose(on_gpu[i].second.cpu(), on_cpu[i].second, 1e-4, 1e-5))
          << on_cpu[i].first;
  }
}

// An update that is queued before the host knows the norm is the one it would have asked for, bit by
// bit; none where a gradient is not a number.
TEST_F(Cuda, UnseenUpdatesEqualSeenOnes) {
  torch::manual_seed(2);
  for (const double limit : {0.0, 0.5, 1e6}) {
    NamedTensors seen, unseen;
    for (int i = 0; i < 1500; ++i) {  // more tensors than one launch takes, some of several pieces
      const at::Tensor x = torch::randn({i % 500 == 0 ? 40001 : 1 + i * 7 % 300}, at::kCUDA);
      for (NamedTensors* list : {&seen, &unseen}) {
        at::Tensor p = x.clone().requires_grad_();
        p.mutable_grad() = 0.1 * x + 0.01;
        list->emplace_back("p" + std::to_string(i), p);
      }
    }
    const OptimizerOptions options{.lr = 1e-2, .weight_decay = 0.1};
    const auto a = make_optimizer(options, seen), b = make_optimizer(options, unseen);
    const double average = 1.0 / 3;
    const at::Tensor squared = local_squared_norm(b->gradients());
    const double norm = squared.sqrt().item<double>() * average;
    for (int step = 0; step < 3; ++step) {
      a->step(1e-2, limit > 0 ? average * std::min(1.0, limit / (norm + 1e-6)) : average);
      ASSERT_TRUE(b->step_clipped(1e-2, {squared, average, limit}));
    }
    const auto expect_equal = [&] {
      for (std::size_t i = 0; i < seen.size(); ++i)
        ASSERT_TRUE(torch::equal(seen[i].second, unseen[i].second)) << seen[i].first;
    };
    expect_equal();
    unseen[7].second.mutable_grad()[0] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor broken = local_squared_norm(b->gradients());
    ASSERT_TRUE(b->step_clipped(1e-2, {broken, average, limit}));
    b->uncount_step();
    expect_equal();
    EXPECT_EQ(b->state().at("step/p7").item<std::int64_t>(), 3);
  }
}

TEST_F(Cuda, FeedHandsOutTheRightBatchesWhileTheDeviceIsBusy) {
  MemorySource source(marked_batches(40, 4 << 20), 0, 1);
  DeviceFeed feed(source.open({}), Precision(PrecisionMode::k32, torch::kCUDA), torch::kCUDA);
  const at::Tensor a = torch::randn({4096, 4096}, torch::device(torch::kCUDA));
  std::vector<at::Tensor> seen;
  for (int i = 0; i < 40; ++i) {
    auto batch = feed.next();
    ASSERT_TRUE(batch);
    EXPECT_TRUE((*batch)["x"].is_cuda());
    EXPECT_TRUE((*batch)["x_lengths"].is_cpu());  // models read it on the host
    // Read late: what waits behind it must not be overwritten by the copies after it.
    const at::Tensor work = a.mm(a).mm(a);
    const at::Tensor& x = (*batch)["x"];
    seen.push_back((x.amin() + x.amax()) / 2 + 0 * work[0][0]);
  }
  EXPECT_FALSE(feed.next());
  EXPECT_FALSE(feed.next());
  for (int i = 0; i < 40; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)].item<float>(), i);
}

TEST_F(Cuda, NextBatchIsCopiedDuringTheStep) {
  MemorySource source(marked_batches(2, 16 << 20), 0, 1);
  DeviceFeed feed(source.open({}), Precision(PrecisionMode::kBf16True, torch::kCUDA), torch::kCUDA);
  const at::Tensor a = torch::randn({8192, 8192}, torch::device(torch::kCUDA));
  a.mm(a).mean().item<float>();  // warm
  feed.next();
  at::Tensor work = a;
  for (int i = 0; i < 200; ++i) work = work.mm(a);  // seconds
  c10::Event end(torch::kCUDA);
  end.record(c10::impl::VirtualGuardImpl(torch::kCUDA).getStream(a.device()));
  const auto batch = feed.next();
  EXPECT_FALSE(end.query()) << "the copy waited for the computation";
  EXPECT_EQ((*batch)["x"].scalar_type(), torch::kBFloat16);
  EXPECT_EQ((*batch)["x"].to(torch::kFloat).mean().item<float>(), 1);
}

TEST_F(Cuda, FeedThrowsWhatItsStreamThrows) {
  struct Broken final : BatchStream {
    std::optional<Batch> next() override { throw DataError("utt_9: the file is truncated"); }
  };
  DeviceFeed feed(std::make_unique<Broken>(), Precision(PrecisionMode::k32, torch::kCUDA),
                  torch::kCUDA);
  EXPECT_THROW(feed.next(), DataError);
}

TEST_F(Cuda, LoaderMemoryIsPinned) {
  const auto memory = host_allocator(torch::kCUDA)(1 << 20);
  const at::Tensor tensor = torch::from_blob(memory.get(), {1 << 18}, torch::kFloat);
  EXPECT_TRUE(tensor.is_pinned());
}

TEST_F(Cuda, OffloadedGradientsArriveBeforeTheyAreUsed) {
  settings.accumulate_grad_batches = 2;
  settings.gradient_clip_val = 0.1;
  toy::Model alone, offloaded;
  const at::Tensor expected = fit_and_take_weights(alone);
  World world = join_world({}, {.device = "cuda:0"});
  FsdpOptions options;
  options.cpu_offload = true;
  options.units.min_params = 50;
  const auto fsdp = make_strategy("fsdp", world, options);
  fit_toy(offloaded, fsdp.get());
  std::map<std::string, at::Tensor> parts;
  for (const auto& [name, placement] : *fsdp->placements()) {
    EXPECT_TRUE(placement.part.is_cpu());
    parts[name] = placement.part.detach().to(torch::kDouble);
  }
  std::vector<at::Tensor> all;
  for (const auto& [name, p] : offloaded.named_parameters()) all.push_back(parts.at(name));
  EXPECT_LT((at::cat(all) - expected).abs().max().item<double>(), 1e-5);
}

// A resumed average comes from a file and goes on beside the weights.
TEST_F(Cuda, EmaResumesOnTheDevice) {
  TempFolder folder;
  const auto train_with_ema = [&](const std::string& name, std::vector<int> steps) {
    settings.checkpoint_folder = folder.path() / name;
    settings.max_epochs = -1;
    for (const int max_steps : steps) {
      const auto ema = make_ema({.decay = 0.9});
      toy::Model model;
      OptimizerSpec spec;
      spec.options.lr = 0.01;
      MemorySource train(float_batches(10, 4), 0, 1);
      MemorySource valid(float_batches(3, 4), 0, 1);
      settings.max_steps = max_steps;
      FitInputs inputs{.model = model,
                       .train = train,
                       .valid = &valid,
                       .strategy = *strategy,
                       .control = *control,
                       .settings = settings,
                       .optimizers = {spec},
                       .criteria = {{"valid/loss", Better::kLower, 2}},
                       .callbacks = {ema.get()}};
      fit(inputs);
    }
    return CheckpointStore::newest(settings.checkpoint_folder)->checkpoint.model;
  };
  const TensorMap whole = train_with_ema("whole", {25}), parts = train_with_ema("parts", {13, 25});
  for (const auto& [name, tensor] : whole)
    EXPECT_LT((tensor - parts.at(name)).abs().max().item<double>(), 1e-6) << name;
}

}  // namespace
}  // namespace tutti::trainer
