// The training config becomes what fit() takes; mistakes are reported together.
#include "tutti/trainer/from_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::trainer {
namespace {

using testing::HasSubstr;

TrainingPlan plan_of(const std::string& yaml, const std::filesystem::path& exp_dir = "exp",
                     int rank = 1) {
  return plan_training(config::parse_yaml(yaml, "training.yaml"),
                       {.exp_dir = exp_dir, .rank = rank});
}

TEST(FromConfig, ReadsTheSeedsNames) {
  const TrainingPlan plan = plan_of(R"(
seed: 7
optimizer: {_target_: torch.optim.AdamW, lr: 0.002, betas: [0.9, 0.98], weight_decay: 0.001}
scheduler: {_target_: espnet2.schedulers.warmup_lr.WarmupLR, warmup_steps: 15000}
best_model_criterion: [[valid/acc, 10, max]]
trainer:
  strategy: ddp_find_unused_parameters_true
  precision: bf16-mixed
  accumulate_grad_batches: 4
  gradient_clip_val: 5.0
  max_epochs: 50
  limit_train_batches: 100
  limit_val_batches: 0.5
  callbacks:
    - {_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid/acc, mode: max}
)");
  EXPECT_EQ(plan.loop.seed, 7u);
  ASSERT_EQ(plan.optimizers.size(), 1u);
  const double base_lr = plan.optimizers[0].make({})->base_lr();
  EXPECT_NEAR(plan.optimizers[0].schedule.build(base_lr)->lr(14999), base_lr, 1e-12);
  ASSERT_EQ(plan.criteria.size(), 1u);
  EXPECT_EQ(plan.criteria[0].keep, 10);
  EXPECT_EQ(plan.criteria[0].better, Better::kHigher);
  EXPECT_EQ(plan.strategy_name(), "ddp_find_unused_parameters_true");
  EXPECT_EQ(plan.loop.precision, PrecisionMode::kBf16Mixed);
  EXPECT_EQ(plan.loop.accumulate_grad_batches.at(0), 4);
  EXPECT_EQ(plan.loop.gradient_clip_val, 5.0);
  EXPECT_EQ(plan.loop.limit_train_batches.of(1000, "x"), 100);
  EXPECT_EQ(plan.loop.limit_val_batches.of(1000, "x"), 500);
  EXPECT_EQ(plan.callbacks.size(), 1u);
  EXPECT_TRUE(plan.loggers.empty());  // rank 1
  EXPECT_EQ(plan.loop.checkpoint_folder, "exp/checkpoints");
}

TEST(FromConfig, FsdpTakesItsOwnKeys) {
  const TrainingPlan plan = plan_of(R"(
optimizer: {_target_: torch.optim.AdamW, lr: 0.002}
trainer:
  precision: bf16-mixed
  strategy:
    _target_: fsdp
    units: [ConformerBlock]
    sharding_strategy: HYBRID_SHARD
    cpu_offload: true
    reduce_precision: bf16
    activation_checkpointing: [ConformerBlock]
    gathers_in_flight: 1
)");
  EXPECT_EQ(plan.strategy_name(), "fsdp");
  EXPECT_EQ(plan.fsdp.sharding, Sharding::kHybrid);
  EXPECT_THAT(plan.fsdp.units.classes, testing::ElementsAre("ConformerBlock"));
  EXPECT_TRUE(plan.fsdp.cpu_offload);
  EXPECT_EQ(plan.fsdp.gather_type, at::kBFloat16);  // the type it computes in
  EXPECT_EQ(plan.fsdp.reduce_type, at::kBFloat16);
  EXPECT_THAT(plan.loop.recompute, testing::ElementsAre("ConformerBlock"));
  EXPECT_EQ(plan.fsdp.gathers_in_flight, 1);
  try {
    plan_of(R"(
optimizer: {_target_: torch.optim.AdamW, lr: 0.002}
trainer:
  strategy: {_target_: fsdp, param_precision: bf16}
)");
    FAIL() << "bf16 weights in a 32-bit computation";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("param_precision"));
    EXPECT_THAT(error.what(), HasSubstr("computes in 32"));
  }
}

TEST(FromConfig, LoggersAreMadeOnRankZero) {
  TempFolder folder;
  const TrainingPlan plan = plan_of(
      "optimizer: {_target_: torch.optim.SGD, lr: 0.1}\n"
      "trainer: {max_epochs: 1, logger: {_target_: "
      "lightning.pytorch.loggers.TensorBoardLogger, save_dir: " +
          folder.path().string() + ", name: tb}}\n",
      folder.path(), 0);
  EXPECT_EQ(plan.loggers.size(), 2u);  // and metrics.jsonl, once
  EXPECT_FALSE(std::filesystem::is_empty(folder.path() / "tb"));
}

TEST(FromConfig, NamedOptimizersNeedMatchingNames) {
  const TrainingPlan plan = plan_of(R"(
optimizers:
  generator: {optimizer: {_target_: torch.optim.Adam, lr: 0.1}, params: generator}
  critic: {optimizer: {_target_: torch.optim.SGD, lr: 0.2}, params: critic,
           gradient_clip_val: 0.5, gradient_clip_algorithm: value}
schedulers:
  generator: {scheduler: {_target_: espnet2.schedulers.noam_lr.NoamLR}, interval: step}
trainer: {max_epochs: 1}
)");
  ASSERT_EQ(plan.optimizers.size(), 2u);
  EXPECT_EQ(plan.optimizers[0].name, "generator");
  EXPECT_NEAR(plan.optimizers[0].schedule.build(1)->lr(0),
              std::pow(320, -0.5) * std::pow(25000, -1.5), 1e-15);
  EXPECT_THAT(plan.optimizers[1].params, testing::ElementsAre("critic"));
  EXPECT_FALSE(plan.optimizers[0].gradient_clip_val);
  EXPECT_EQ(plan.optimizers[1].gradient_clip_val, 0.5);
  EXPECT_EQ(plan.optimizers[1].gradient_clip_algorithm, ClipAlgorithm::kValue);
}

TEST(FromConfig, TimeoutAndBucketsReachTheRanks) {
  const TrainingPlan plan = plan_of(R"(
optimizer: {_target_: torch.optim.Adam}
trainer: {timeout: "00:05:00", strategy: {_target_: ddp, bucket_cap_mb: 50}, deterministic: warn}
)");
  EXPECT_TRUE(plan.loop.deterministic.on && plan.loop.deterministic.warn_only);
  EXPECT_EQ(plan.world_options("cpu").timeout, 300);
  EXPECT_EQ(plan.strategy.bucket_cap_mb, 50);
}

TEST(FromConfig, CheckpointCallbacksDoWhatTheySay) {
  const TrainingPlan plan = plan_of(R"(
optimizer: {_target_: torch.optim.Adam}
trainer:
  callbacks:
    - {_target_: lightning.pytorch.callbacks.ModelCheckpoint, monitor: valid/acc, mode: max,
       save_top_k: -1, train_time_interval: "00:10:00"}
    - {_target_: lightning.pytorch.callbacks.ModelCheckpoint, save_top_k: -1, every_n_epochs: 5}
    - {_target_: average_checkpoints, num_checkpoints: 3}
)");
  ASSERT_EQ(plan.criteria.size(), 2u);
  EXPECT_GT(plan.criteria[1].keep, 1'000'000);
  EXPECT_EQ(plan.loop.save_every_seconds, 600);
  ASSERT_EQ(plan.loop.kept_saves.size(), 1u);
  EXPECT_EQ(plan.loop.kept_saves[0].every_n_epochs, 5);
  EXPECT_FALSE(plan.loop.kept_saves[0].timed);
  EXPECT_EQ(plan.loop.average_best, 3);
  try {
    plan_of(R"(
optimizer: {_target_: torch.optim.Adam}
trainer: {callbacks: [{_target_: lightning.pytorch.callbacks.ModelCheckpoint, filename: "{epoch}"}]}
)");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("epochE_stepS_METRIC"));
  }
}

TEST(FromConfig, AllMistakesAtOnce) {
  try {
    plan_of(
        "optimizer: {_target_: torch.optim.Adamm}\n"
        "scheduler: {_target_: espnet2.schedulers.warmup_lr.WarmupLR, warmup_step: 3}\n"
        "trainer: {max_epochs: 1}\n");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("training.yaml:1"));
    EXPECT_THAT(error.what(), HasSubstr("torch.optim.Adam"));
    EXPECT_THAT(error.what(), HasSubstr("warmup_steps"));
  }
}

}  // namespace
}  // namespace tutti::trainer
