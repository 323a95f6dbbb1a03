// Several ranks on one GPU, over the strict stand-in for NCCL (nccl_standin/): the weights of CPU
// ranks, and the same ends for the same faults.
#include <c10/cuda/CUDAFunctions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "tests/places.h"
#include "tests/trainer/ranks.h"

namespace tutti::trainer {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

const Words kGpu = {"device=cuda:0"};
// Doubles, but a GPU's optimizers take the factor of clipping as a float.
constexpr double kSame = 1e-6;

std::string last_line(const std::string& log) { return split(std::string(trim(log)), '\n').back(); }

class GpuRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    ::setenv("TUTTI_NCCL_LIBRARY", in_bin("libnccl_standin.so").c_str(), 1);
    // A stream that waits for another rank must not stand in the way of one that shares its queue.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  }
  // NCCL_STANDIN_FAULT of the ranks to come.
  static void disturb(const char* fault) { ::setenv("NCCL_STANDIN_FAULT", fault, 1); }
  fs::path at(const std::string& name) const { return folder.path() / name; }

  TempFolder folder;
};

TEST_F(GpuRanks, EightCheckEveryOperation) {
  train(folder.path(), 8, with(kGpu, {"trial=1", "steps=4", "strategy=ddp"}));
}

TEST_F(GpuRanks, EveryStrategyGivesTheWeightsOfCpuRanks) {
  const auto cpu = flattened(train(at("cpu"), 4, kDeep));
  const Words gpu = with(kDeep, kGpu);
  EXPECT_LT(largest_difference(cpu, flattened(train(at("ddp"), 4, gpu))), kSame);
  for (const char* more : {"in_flight=1", "sharding=grad_op", "offload=1"})
    EXPECT_LT(largest_difference(cpu, train_sharded(at(more), 4, with(gpu, {more}))), kSame)
        << more;
  // Two nodes of two: both hold the whole model, so the first node's parts are all of it.
  make_folders(at("hybrid"));
  Ranks ranks =
      start(at("hybrid"), 4, with(gpu, {"strategy=fsdp", "sharding=hybrid", "local_world=2"}));
  expect_all_ok(ranks);
  const TensorMap left = final_weights(at("hybrid"), 0), right = final_weights(at("hybrid"), 1);
  TensorMap whole;
  for (const auto& [name, part] : left) whole[name] = at::cat({part, right.at(name)});
  EXPECT_LT(largest_difference(cpu, whole), kSame) << "hybrid";
}

TEST_F(GpuRanks, MixedPrecisionIsThatOfCpuRanks) {
  const Words words = with(kDeep, {"precision=bf16-mixed"});
  const auto cpu = flattened(train(at("cpu"), 2, words));
  EXPECT_LT(largest_difference(cpu, flattened(train(at("ddp"), 2, with(words, kGpu)))), 2e-2);
  EXPECT_LT(
      largest_difference(cpu, train_sharded(at("fsdp"), 2, with(words, {kGpu[0], "gather=bf16"}))),
      2e-2);
}

// One rank's infinite gradient is everyone's overflow: all drop the step and halve the loss scale.
TEST_F(GpuRanks, AnOverflowOnOneRankIsEveryonesDecision) {
  for (const char* strategy : {"strategy=ddp", "strategy=fsdp"}) {
    const fs::path dir = at(strategy);
    make_folders(dir);
    Ranks ranks = start(dir, 2,
                        with(kGpu, {"precision=16-mixed", "fault=inf", "fault_rank=1", "steps=12",
                                    "clip=1", strategy}));
    expect_all_ok(ranks);
    // The first scale may be too large as well, so it can be more than one step.
    EXPECT_THAT(ranks.log(0), ContainsRegex("steps=12 skipped=[1-9]")) << strategy;
    EXPECT_EQ(last_line(ranks.log(0)), last_line(ranks.log(1))) << strategy;
    for (const int rank : {0, 1}) {
      for (const auto& [name, part] : final_weights(dir, rank))
        EXPECT_TRUE(part.isfinite().all().item<bool>()) << name;
    }
  }
}

TEST_F(GpuRanks, UnusedParametersAreAllowedWhenAskedFor) {
  const Words words = {"fault=unused", "fault_rank=1", "strategy=ddp_find_unused_parameters_true"};
  EXPECT_LT(largest_difference(train(at("cpu"), 2, words), train(at("gpu"), 2, with(words, kGpu))),
            kSame);
}

TEST_F(GpuRanks, SavedByFourGoesOnWithTwoAsIfOneHadTrainedAlone) {
  train(at("whole"), 1, checkpointed_run(4, 20));
  const fs::path dir = at("chain");
  train_sharded(dir, 4, with(checkpointed_run(1, 6), kGpu));
  for (const auto& [steps, strategy, told] :
       {std::tuple{13, "strategy=ddp", "step 6"}, std::tuple{20, "strategy=fsdp", "step 13"}}) {
    Ranks ranks = start(dir, 2, with(checkpointed_run(2, steps), {kGpu[0], strategy}));
    expect_all_ok(ranks);
    EXPECT_THAT(ranks.log(0), HasSubstr(told));
  }
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const TensorMap a = last_checkpoint(at("whole"), file), b = last_checkpoint(dir, file);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_LT(largest_difference(a, b), kSame) << file;
  }
}

TEST_F(GpuRanks, KilledAndStoppedRanksAreNamed) {
  for (const char* strategy : {"strategy=ddp", "strategy=fsdp"}) {
    EXPECT_THAT(fault_seen_by_rank_zero("kill", {kGpu[0], strategy}), HasSubstr("rank 1"));
    EXPECT_THAT(fault_seen_by_rank_zero("stop", {kGpu[0], strategy}, true), HasSubstr("rank 1"));
  }
}

// With FSDP the host waits for its GPU, whose kernels wait for rank 1.
TEST_F(GpuRanks, RankThatIsAliveButStuckIsNamedAfterTheTimeout) {
  for (const char* strategy : {"ddp", "fsdp"}) {
    const std::string log =
        fault_seen_by_rank_zero("hang",
                                {kGpu[0], "strategy=config", "depth=2",
                                 std::string("trainer={timeout: 10, strategy: ") + strategy + "}"},
                                true);
    EXPECT_THAT(log, HasSubstr("rank 1")) << strategy;
    EXPECT_THAT(log, HasSubstr("last doing: epoch 0 step 5")) << strategy;
  }
}

TEST_F(GpuRanks, ALateLinkChangesNothing) {
  const auto cpu = flattened(train(at("cpu"), 2, kDeep));
  disturb("lag 1 3");
  EXPECT_LT(largest_difference(cpu, train_sharded(at("late"), 2, with(kDeep, kGpu))), kSame);
}

TEST_F(GpuRanks, AnOperationThatNeverEndsEndsTheRunAfterTheTimeout) {
  disturb("hang 1 9");
  Ranks ranks = start(folder.path(), 2,
                      with(kGpu, {"strategy=config", "trainer={timeout: 10, strategy: ddp}"}));
  for (const ExitStatus& status : ranks.wait()) EXPECT_EQ(status.exit_code, 5) << ranks.log(0);
  EXPECT_THAT(ranks.log(0), HasSubstr("have waited for 10 s")) << ranks.log(1);
}

TEST_F(GpuRanks, AnErrorOfTheLinkEndsTheRun) {
  disturb("error 1 9");
  Ranks ranks = start(folder.path(), 2,
                      with(kGpu, {"strategy=config", "trainer={timeout: 10, strategy: ddp}"}));
  for (const ExitStatus& status : ranks.wait()) EXPECT_EQ(status.exit_code, 5) << ranks.log(0);
  EXPECT_THAT(ranks.log(0), AnyOf(HasSubstr("network error"), HasSubstr("have waited for 10 s")));
}

}  // namespace
}  // namespace tutti::trainer
