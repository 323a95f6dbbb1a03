// The loop on a GPU: precisions, the fused optimizer, NCCL, out of memory, exact resume.
#include <c10/cuda/CUDAFunctions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/trainer/toy.h"
#include "tutti/core/file.h"
#include "tutti/trainer/collectives/nccl.h"
#include "tutti/trainer/loop.h"

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
  at::Tensor fit_and_take_weights(TrainableModel& model, Strategy* other = nullptr) {
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
  const auto ddp = make_ddp_strategy(*nccl, *control, /*find_unused=*/false);
  EXPECT_LT((fit_and_take_weights(with_ddp, ddp.get()) - expected).abs().max().item<double>(),
            1e-6);
}

}  // namespace
}  // namespace tutti::trainer
