// The loop in one process: learning, limits, accumulation, resume, NaN and OOM policies.
#include "tutti/trainer/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/trainer/small_run.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::trainer {
namespace {

using testing::HasSubstr;

TEST(Loop, LearnsAndCounts) {
  SmallRun s;
  s.settings.max_epochs = 30;
  const FitResult result = s.run();
  EXPECT_EQ(result.end, FitEnd::kDone);
  EXPECT_EQ(result.epochs, 30);
  EXPECT_EQ(result.steps, 300);
  EXPECT_LT(result.last_validation.at("valid/loss"), 0.2);
}

TEST(Loop, MaxStepsCountsOptimizerSteps) {
  SmallRun s;
  s.settings.max_epochs = -1;
  s.settings.max_steps = 7;
  s.settings.accumulate_grad_batches = 3;  // windows of 3, 3, 3, 1 batches
  const FitResult result = s.run();
  EXPECT_EQ(result.steps, 7);
  EXPECT_EQ(result.epochs, 1);
}

TEST(Loop, AccumulationEqualsLargerBatch) {
  SmallRun big, small;
  big.train = std::make_unique<MemorySource>(toy::batches(20, 8), 0, 1);
  small.train = std::make_unique<MemorySource>(toy::batches(40, 4), 0, 1);
  small.settings.accumulate_grad_batches = 2;
  big.settings.max_epochs = small.settings.max_epochs = 1;
  big.settings.gradient_clip_val = small.settings.gradient_clip_val = 0.5;
  EXPECT_EQ(big.run().steps, small.run().steps);
  EXPECT_LT((big.weights() - small.weights()).abs().max().item<double>(), 1e-12);
}

TEST(Loop, MeanOfMeansWeighsUnequalBatchesEqually) {
  // Two micro-batches of 1 and 3 examples: the two reductions must differ, and `global` must equal
  // one batch of 4.
  const auto all = toy::batches(1, 4);
  std::vector<Batch> uneven(2);
  for (const char* key : {"x", "y"}) {
    uneven[0].tensors[key] = all[0].tensors.at(key).narrow(0, 0, 1);
    uneven[1].tensors[key] = all[0].tensors.at(key).narrow(0, 1, 3);
  }
  std::vector<at::Tensor> weights;
  for (const int mode : {0, 1, 2}) {
    SmallRun s;
    s.settings.max_steps = 1;
    s.valid.reset();
    if (mode > 0) {
      s.train = std::make_unique<MemorySource>(uneven, 0, 1);
      s.settings.accumulate_grad_batches = 2;
    } else {
      s.train = std::make_unique<MemorySource>(all, 0, 1);
    }
    if (mode == 2) s.settings.loss_reduction = LossReduction::kMeanOfMeans;
    s.run();
    weights.push_back(s.weights());
  }
  EXPECT_LT((weights[0] - weights[1]).abs().max().item<double>(), 1e-12);
  EXPECT_GT((weights[0] - weights[2]).abs().max().item<double>(), 1e-6);
}

TEST(Loop, ResumesBitExactFromTheMiddleOfAnEpoch) {
  TempFolder folder;
  SmallRun whole;
  whole.model = toy::Model(0.3);
  whole.settings.max_epochs = 3;
  whole.run();

  SmallRun first;
  first.model = toy::Model(0.3);
  first.settings.max_epochs = 3;
  first.settings.max_steps = 14;  // in the middle of epoch 1
  first.settings.checkpoint_folder = folder.path();
  first.run();

  SmallRun second;
  second.model = toy::Model(0.3, /*seed=*/1234);  // other weights, to be replaced
  second.settings.max_epochs = 3;
  second.settings.checkpoint_folder = folder.path();
  const FitResult result = second.run();
  EXPECT_EQ(result.steps, 30);
  EXPECT_TRUE(whole.weights().equal(second.weights()));
}

// A model that misbehaves in chosen steps.
class BadModel final : public toy::Model {
 public:
  enum class Fault { kNan, kOutOfMemory };
  BadModel(Fault fault, int first, int last) : fault_(fault), first_(first), last_(last) {}
  StepOutput training_step(const Batch& batch) override {
    const int call = calls_++;
    auto out = toy::Model::training_step(batch);
    if (call < first_ || call > last_) return out;
    if (fault_ == Fault::kNan) out.loss = out.loss * std::nan("");
    if (fault_ == Fault::kOutOfMemory) torch::empty({1ll << 60});  // really refused
    return out;
  }
  StepOutput validation_step(const Batch& batch) override {
    return toy::Model::training_step(batch);
  }

 private:
  Fault fault_;
  int first_, last_;
  int calls_ = 0;
};

TEST(Loop, NanLossIsSkippedAndThenFatal) {
  SmallRun s;
  BadModel once(BadModel::Fault::kNan, 3, 4);
  const FitResult result = s.run(&once);
  EXPECT_EQ(result.steps, 18);
  EXPECT_EQ(result.skipped_steps, 2);
  EXPECT_TRUE(s.weights(&once).isfinite().all().item<bool>());

  BadModel always(BadModel::Fault::kNan, 3, 1000);
  s.settings.max_nonfinite_steps = 4;
  try {
    s.run(&always);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 was NaN or infinite in 4 steps in a row"));
  }
}

TEST(Loop, OutOfMemoryIsSkippedAndThenFatal) {
  SmallRun s;
  BadModel once(BadModel::Fault::kOutOfMemory, 2, 2);
  EXPECT_EQ(s.run(&once).skipped_steps, 1);
  BadModel always(BadModel::Fault::kOutOfMemory, 2, 1000);
  s.settings.max_out_of_memory_steps = 2;
  try {
    s.run(&always);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 ran out of memory in 2 steps"));
  }
}

TEST(Loop, KeepsTheBestAndAveragesThem) {
  TempFolder folder;
  SmallRun s;
  s.settings.max_epochs = 6;
  s.settings.checkpoint_folder = folder.path();
  s.criteria = {{"valid/loss", Better::kLower, 3}};
  s.run();
  const Json best = parse_json(read_file(folder.path() / "best.json"), "best.json");
  ASSERT_EQ(best["valid/loss"].size(), 3u);
  std::vector<std::filesystem::path> files;
  double previous = -1;
  for (const Json& entry : best["valid/loss"]) {
    EXPECT_GE(entry["value"].get<double>(), previous);
    previous = entry["value"].get<double>();
    files.push_back(folder.path() / entry["file"].get<std::string>());
    EXPECT_TRUE(std::filesystem::exists(files.back()));
  }
  // The loss falls to the end, so the last epoch must be among the averaged.
  EXPECT_EQ(best["valid/loss"][0]["epoch"].get<int>(), 5);
  const TensorMap average = read_safetensors(folder.path() / "valid.loss.ave_3best.safetensors");
  at::Tensor sum = at::zeros_like(average.at("first.weight"));
  for (const auto& file : files) sum += read_safetensors(file).at("first.weight");
  EXPECT_LT((sum / 3 - average.at("first.weight")).abs().max().item<double>(), 1e-15);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "valid.loss.ave_3best.pth"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "last"));
}

TEST(Loop, KeepsTheWeightsOfTheSavesThatWereAskedFor) {
  TempFolder folder;
  SmallRun s;
  s.settings.max_epochs = 4;
  s.settings.checkpoint_folder = folder.path();
  s.settings.save_every_n_steps = 3;  // not to be kept
  s.settings.kept_saves = {{.every_n_steps = 4}, {.every_n_epochs = 2}};
  s.run();
  const auto kept = [&](const char* name) { return std::filesystem::exists(folder.path() / name); };
  EXPECT_TRUE(kept("epoch0_step4.safetensors"));
  EXPECT_TRUE(kept("epoch0_step8.safetensors"));
  EXPECT_FALSE(kept("epoch0_step3.safetensors"));
  EXPECT_FALSE(kept("epoch0_step10.safetensors"));  // the first epoch's end
  EXPECT_FALSE(kept("epoch2_step30.safetensors"));
  EXPECT_TRUE(kept("epoch1_step20.safetensors"));
  EXPECT_TRUE(kept("epoch3_step40.safetensors"));
}

TEST(Loop, SavesByTheClock) {
  TempFolder folder;
  SmallRun s;
  s.settings.checkpoint_folder = folder.path();
  s.settings.save_every_seconds = 1e-9;  // after every step
  s.settings.kept_saves = {{.timed = true}};
  s.run();
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "epoch0_step3.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "epoch1_step17.safetensors"));
}

TEST(Loop, OverfittingSeesTheSameBatchesInEveryEpoch) {
  // As a shuffling loader: another order in every epoch.
  struct Shuffled final : DataSource {
    MemorySource inner{toy::batches(10, 4), 0, 1};
    std::unique_ptr<BatchStream> open(const Position& p) override {
      return inner.open({p.epoch, p.batch + 3 * p.epoch});
    }
    std::optional<std::int64_t> num_batches(std::int64_t) const override { return 4; }
    std::uint64_t plan_hash(std::int64_t epoch) const override { return inner.plan_hash(epoch); }
  } source;
  class Watcher final : public toy::Model {
   public:
    StepOutput training_step(const Batch& batch) override {
      seen.push_back(batch.utt_ids.at(0));
      return toy::Model::training_step(batch);
    }
    StepOutput validation_step(const Batch& batch) override {
      return toy::Model::training_step(batch);
    }
    std::vector<std::string> seen;
  } model;
  SmallRun s;
  s.settings.overfit_batches = Amount::count(2);
  OptimizerSpec spec;
  FitInputs inputs{.model = model,
                   .train = source,
                   .strategy = *s.strategy,
                   .control = *s.control,
                   .settings = s.settings,
                   .optimizers = {spec}};
  fit(inputs);
  EXPECT_THAT(model.seen, testing::ElementsAre("utt_0", "utt_4", "utt_0", "utt_4"));
}

TEST(Loop, EarlyStoppingEndsTheRun) {
  SmallRun s;
  s.settings.max_epochs = 50;
  const auto callback =
      make_early_stopping({.monitor = "valid/loss", .min_delta = 10, .patience = 2});
  s.callbacks = {callback.get()};
  const FitResult result = s.run();
  EXPECT_EQ(result.epochs, 3);
  EXPECT_THAT(result.reason, HasSubstr("valid/loss did not improve"));
}

// What is validated is what is saved, kept as best and averaged; training goes on without it.
TEST(Loop, EmaIsWhatIsValidatedAndDelivered) {
  TempFolder folder;
  SmallRun s, plain;
  const auto ema = make_ema({.decay = 0.5});
  s.callbacks = {ema.get()};
  s.criteria = {{"valid/loss", Better::kLower, 2}};
  s.settings.checkpoint_folder = folder.path();
  const FitResult result = s.run();
  plain.run();
  EXPECT_TRUE(s.weights().equal(plain.weights()));  // training itself is as without
  const auto found = CheckpointStore::newest(folder.path());
  ASSERT_TRUE(found);
  const TensorMap& saved = found->checkpoint.model;
  EXPECT_FALSE(saved.at("first.weight").equal(s.model.named_parameters()[0].second.detach()));
  EXPECT_TRUE(found->checkpoint.extra.at("trained/first.weight")
                  .equal(s.model.named_parameters()[0].second.detach()));

  // The best file validates to the number it was kept for.
  const Json best = parse_json(read_file(folder.path() / "best.json"), "best.json");
  const std::string file = (*best.begin())[0]["file"];
  load_tensors(read_safetensors(folder.path() / file), plain.model_tensors(), file);
  MetricSums sums;
  for (const Batch& batch : toy::batches(3, 4)) {
    torch::NoGradGuard no_grad;
    sums.add("valid/", plain.model.validation_step(batch));
  }
  EXPECT_NEAR(sums.means().at("valid/loss"), (*best.begin())[0]["value"].get<double>(), 1e-12);
}

TEST(Loop, EmaResumesBitExact) {
  TempFolder folder;
  const auto whole_average = make_ema({.decay = 0.9}), first_half = make_ema({.decay = 0.9}),
             second_half = make_ema({.decay = 0.9});
  SmallRun whole, parts;
  whole.callbacks = {whole_average.get()};
  whole.settings.checkpoint_folder = folder.path() / "whole";
  whole.settings.max_epochs = 3;
  whole.run();
  parts.settings.checkpoint_folder = folder.path() / "parts";
  parts.settings.max_epochs = -1;
  parts.settings.max_steps = 13;
  parts.callbacks = {first_half.get()};
  parts.run();
  parts.model = toy::Model(0.0, /*seed=*/3);
  parts.settings.max_epochs = 3;
  parts.settings.max_steps = -1;
  parts.callbacks = {second_half.get()};
  parts.run();
  EXPECT_TRUE(whole.weights().equal(parts.weights()));
  const auto a = CheckpointStore::newest(folder.path() / "whole");
  const auto b = CheckpointStore::newest(folder.path() / "parts");
  for (const auto& [name, tensor] : a->checkpoint.model)
    EXPECT_TRUE(tensor.equal(b->checkpoint.model.at(name))) << name;
}

// The mean of the weights at the ends of the last epochs, and their learning rate.
TEST(Loop, SwaAveragesTheLastEpochs) {
  struct Ends final : Callback {
    std::vector<at::Tensor> seen;
    void on_epoch_end(const Moment& moment) override {
      seen.push_back(moment.weights[0].second.detach().clone());
    }
  } ends;
  TempFolder folder;
  SmallRun s;
  const auto swa = make_swa(/*first_epoch=*/2);
  s.callbacks = {swa.get(), &ends};
  s.settings.max_epochs = 5;
  s.settings.last_phase = LastPhase{.first_epoch = 2, .lr = 0.002, .annealing_epochs = 2};
  s.settings.checkpoint_folder = folder.path();
  s.run();
  ASSERT_EQ(ends.seen.size(), 5u);
  const auto saved = CheckpointStore::newest(folder.path())->checkpoint.model;
  const at::Tensor mean = (ends.seen[2] + ends.seen[3] + ends.seen[4]) / 3;
  EXPECT_LT((saved.at("first.weight") - mean).abs().max().item<double>(), 1e-12);
}

TEST(Loop, LearningRatesMoveToThoseOfTheLastPhase) {
  std::vector<std::unique_ptr<Optimizer>> one;
  one.push_back(make_optimizer(OptimizerOptions{.lr = 0.1}, {}));
  OptimizerGroups groups(std::move(one), {});
  groups.set_last_phase({.first_epoch = 2, .lr = 0.02, .annealing_epochs = 4});
  EXPECT_NEAR(groups.lrs({0, 1})[0], 0.1, 1e-12);
  EXPECT_NEAR(groups.lrs({0, 2})[0], 0.1, 1e-12);
  EXPECT_NEAR(groups.lrs({0, 4})[0], 0.06, 1e-12);
  EXPECT_NEAR(groups.lrs({0, 9})[0], 0.02, 1e-12);
}

TEST(Loop, ParameterGroupsHaveSettingsOfTheirOwn) {
  SmallRun s;
  const at::Tensor bias = s.model.module()->named_parameters()["first.bias"].detach().clone();
  const at::Tensor weight = s.model.module()->named_parameters()["second.weight"].detach().clone();
  OptimizerSpec spec;
  spec.options.lr = 0.01;
  spec.groups = {{.dims = 1, .make = [](NamedTensors p) {
                    return make_optimizer(OptimizerOptions{.lr = 0}, std::move(p));
                  }}};
  FitInputs inputs{.model = s.model,
                   .train = *s.train,
                   .strategy = *s.strategy,
                   .control = *s.control,
                   .settings = s.settings,
                   .optimizers = {spec}};
  fit(inputs);
  EXPECT_TRUE(s.model.module()->named_parameters()["first.bias"].equal(bias.to(at::kDouble)));
  EXPECT_FALSE(s.model.module()->named_parameters()["second.weight"].equal(weight.to(at::kDouble)));
  inputs.optimizers[0].groups[0].match = {"nothing*"};
  EXPECT_THROW(fit(inputs), ConfigError);
}

TEST(Loop, MinEpochsHoldsBackEarlyStopping) {
  SmallRun s;
  s.settings.max_epochs = 50;
  s.settings.min_epochs = 6;
  const auto callback =
      make_early_stopping({.monitor = "valid/loss", .min_delta = 10, .patience = 2});
  s.callbacks = {callback.get()};
  EXPECT_EQ(s.run().epochs, 6);
}

TEST(Loop, AccumulationMayChangeByEpoch) {
  SmallRun s;
  s.settings.max_epochs = 3;
  s.settings.accumulate_grad_batches.from_epoch = {{0, 5}, {1, 2}};
  EXPECT_EQ(s.run().steps, 2 + 5 + 5);  // of 10 batches each
}

TEST(Loop, Bf16MixedAndBf16TrueTrain) {
  for (const auto mode : {PrecisionMode::kBf16Mixed, PrecisionMode::kBf16True, PrecisionMode::k32,
                          PrecisionMode::k16Mixed}) {
    SmallRun s;
    s.settings.precision = mode;
    auto data = toy::batches(10, 4);
    for (Batch& batch : data)
      for (auto& [name, tensor] : batch.tensors) tensor = tensor.to(at::kFloat);
    s.train = std::make_unique<MemorySource>(data, 0, 1);
    s.valid = std::make_unique<MemorySource>(data, 0, 1);
    s.settings.max_epochs = 5;
    const FitResult result = s.run();
    EXPECT_LT(result.last_validation.at("valid/loss"), 0.7) << to_string(mode);
  }
}

TEST(Loop, ValidationHappensWhereLightningWouldDoIt) {
  struct Counter final : Callback {
    std::vector<std::int64_t> steps;
    void after_validation(const Moment& moment) override {
      if (moment.metrics) steps.push_back(moment.step);
    }
  };
  const auto steps_with = [](Amount interval, std::optional<int> every_n_epoch) {
    SmallRun s;
    Counter counter;
    s.callbacks = {&counter};
    s.settings.val_check_interval = interval;
    s.settings.check_val_every_n_epoch = every_n_epoch;
    s.run();
    return counter.steps;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(steps_with(Amount::fraction(1.0), 1), (Steps{10, 20}));
  EXPECT_EQ(steps_with(Amount::fraction(0.5), 1), (Steps{5, 10, 15, 20}));
  EXPECT_EQ(steps_with(Amount::count(4), 1), (Steps{4, 8, 14, 18}));
  EXPECT_EQ(steps_with(Amount::fraction(1.0), 2), (Steps{20}));
  EXPECT_EQ(steps_with(Amount::count(7), std::nullopt), (Steps{7, 14}));
}

}  // namespace
}  // namespace tutti::trainer
