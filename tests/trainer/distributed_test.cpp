// Several ranks as real processes on this machine: equal results, and every fault ends the run in
// seconds with the right rank named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/ranks.h"
#include "tutti/core/random.h"
#include "tutti/trainer/checkpoint/store.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(Ddp, WorldSizeAndAccumulationDoNotChangeTheResult) {
  TempFolder folder;
  const auto one = train(folder.path() / "w1", 1, {"steps=20", "batches=20", "batch=8"});
  const auto two = train(folder.path() / "w2", 2, {"steps=20", "batches=40", "batch=4"});
  const auto accumulated =
      train(folder.path() / "acc", 1, {"steps=20", "batches=40", "batch=4", "accum=2"});
  const auto both = train(folder.path() / "both", 2,
                          {"steps=20", "batches=80", "batch=2", "accum=2", "clip=100"});
  EXPECT_LT(largest_difference(one, two), 1e-12);
  EXPECT_LT(largest_difference(one, accumulated), 1e-12);
  EXPECT_LT(largest_difference(one, both), 1e-12);
}

TEST(Ddp, ClippingIsTheSameForAnyWorldSize) {
  TempFolder folder;
  const auto one =
      train(folder.path() / "w1", 1, {"steps=10", "batches=20", "batch=8", "clip=0.05"});
  const auto two =
      train(folder.path() / "w2", 2, {"steps=10", "batches=40", "batch=4", "clip=0.05"});
  EXPECT_LT(largest_difference(one, two), 1e-12);
}

TEST(Ddp, OwnTcpRingTrainsTheSame) {
  TempFolder folder;
  const auto one = train(folder.path() / "w1", 1, {"steps=20", "batches=20", "batch=9"});
  const auto three =
      train(folder.path() / "w3", 3, {"steps=20", "batches=60", "batch=3", "backend=tcp"});
  EXPECT_LT(largest_difference(one, three), 1e-12);
}

// Four utterances, one per batch, three ranks: in every second step two ranks have nothing.
TEST(Ddp, RanksWithoutUtterancesTakePartWithNoWeight) {
  TempFolder folder;
  const Words common = {"epochs=5", "steps=-1", "batches=4", "batch=1"};
  const auto at = [&](const std::string& name, int world, const Words& more) {
    Words words = common;
    words.insert(words.end(), more.begin(), more.end());
    return train(folder.path() / name, world, words);
  };
  const auto alone = at("alone", 1, {"accum=3"});
  EXPECT_LT(largest_difference(alone, at("ddp", 3, {"pad=1"})), 1e-12);
  EXPECT_LT(largest_difference(
                alone, at("find_unused", 3, {"pad=1", "strategy=ddp_find_unused_parameters_true"})),
            1e-12);
  EXPECT_LT(
      largest_difference(at("alone_whole", 1, {"accum=6"}), at("accum", 3, {"pad=1", "accum=2"})),
      1e-12);
}

TEST(Ddp, ParametersUsedInOneMicroBatchOnlyKeepTheirGradient) {
  TempFolder folder;
  const Words common = {"epochs=3", "steps=-1", "batches=8", "batch=1", "rare=1"};
  const auto at = [&](const std::string& name, int world, const Words& more) {
    Words words = common;
    words.insert(words.end(), more.begin(), more.end());
    return train(folder.path() / name, world, words);
  };
  const auto alone = at("alone", 1, {"accum=4"});
  EXPECT_LT(largest_difference(alone, at("ddp", 2, {"accum=2"})), 1e-12);
  EXPECT_LT(largest_difference(alone, at("find_unused", 2,
                                         {"accum=2", "strategy=ddp_find_unused_parameters_true"})),
            1e-12);
}

TEST(Ddp, BucketSizeComesFromTheConfig) {
  TempFolder folder;
  const auto buckets = [&](const std::string& strategy) {
    Ranks ranks = start(folder.path(), 2,
                        {"steps=2", "depth=8", "width=128", "strategy=config",
                         "trainer={strategy: " + strategy + "}"});
    expect_all_ok(ranks);
    const std::string log = ranks.log(0), before = "gradients are summed in ";
    const std::size_t place = log.find(before);
    return place == std::string::npos ? -1 : std::stoi(log.substr(place + before.size()));
  };
  // 8 blocks of half a MiB.
  EXPECT_EQ(buckets("ddp"), 2);
  EXPECT_GE(buckets("{_target_: ddp, bucket_cap_mb: 1}"), 4);
}

TEST(Faults, RankThatIsAliveButStuckIsNamedAfterTheTimeout) {
  const std::string log = fault_seen_by_rank_zero(
      "hang", {"strategy=config", "trainer={timeout: 2, strategy: ddp}"}, true);
  EXPECT_THAT(log, HasSubstr("rank 1"));
  EXPECT_THAT(log, HasSubstr("last doing: epoch 0 step 5"));
}

TEST(Faults, RankStuckBetweenGathersIsNamedAfterTheTimeout) {
  const std::string log = fault_seen_by_rank_zero(
      "hang", {"strategy=config", "depth=2", "trainer={timeout: 2, strategy: fsdp}"}, true);
  EXPECT_THAT(log, HasSubstr("rank 1"));
  EXPECT_THAT(log, HasSubstr("last doing: epoch 0 step 5"));
}

TEST(Faults, KilledRankIsNamed) {
  EXPECT_THAT(fault_seen_by_rank_zero("kill"), HasSubstr("rank 1"));
}

TEST(Faults, StoppedRankIsNamed) {
  EXPECT_THAT(fault_seen_by_rank_zero("stop", {}, true), HasSubstr("rank 1"));
}

TEST(Faults, KilledAndStoppedRanksAreNamedOverTheTcpRing) {
  EXPECT_THAT(fault_seen_by_rank_zero("kill", {"backend=tcp"}), HasSubstr("rank 1"));
  EXPECT_THAT(fault_seen_by_rank_zero("stop", {"backend=tcp"}, true), HasSubstr("rank 1"));
}

TEST(Faults, ExceptionReachesTheOthersWithItsText) {
  const std::string log = fault_seen_by_rank_zero("throw");
  EXPECT_THAT(log, HasSubstr("rank 1"));
  EXPECT_THAT(log, HasSubstr("utt_13: the transcript is empty"));
}

TEST(Faults, DifferentModelIsNamedWithTheDifference) {
  const std::string log = fault_seen_by_rank_zero("shape");
  EXPECT_THAT(log, HasSubstr("rank 1 built another model"));
  EXPECT_THAT(log, HasSubstr("extra [3, 2]"));
}

TEST(Faults, DifferentPlanIsNamed) {
  EXPECT_THAT(fault_seen_by_rank_zero("plan"), HasSubstr("rank 1 has 19 batches, rank 0 has 20"));
}

TEST(Faults, NanLossIsDroppedEverywhereThenFatal) {
  const std::string log = fault_seen_by_rank_zero("nan", {"max_nonfinite=4"});
  EXPECT_THAT(log, HasSubstr("dropped on all ranks: the loss of rank 1 is not finite"));
  EXPECT_THAT(log, HasSubstr("the loss of rank 1 was NaN or infinite in 4 steps in a row"));
}

TEST(Faults, OutOfMemoryIsDroppedEverywhereThenFatal) {
  const std::string log = fault_seen_by_rank_zero("oom", {"max_oom=3"});
  EXPECT_THAT(log, HasSubstr("dropped on all ranks: rank 1 ran out of memory"));
  EXPECT_THAT(log, HasSubstr("rank 1 ran out of memory in 3 steps in a row"));
}

TEST(Faults, UnusedParametersAreListedBeforeTheStep) {
  const std::string log = fault_seen_by_rank_zero("unused");
  EXPECT_THAT(log, HasSubstr("rank 1: 3 of 4 parameters got no gradient"));
  EXPECT_THAT(log, HasSubstr("first.weight"));
}

TEST(Faults, UnusedParametersAreAllowedWhenAskedFor) {
  TempFolder folder;
  train(folder.path(), 2,
        {"fault=unused", "fault_rank=1", "strategy=ddp_find_unused_parameters_true"});
}

TEST(Faults, UnusedParametersAreAllowedOverTheTcpRingToo) {
  TempFolder folder;
  train(
      folder.path(), 2,
      {"fault=unused", "fault_rank=1", "strategy=ddp_find_unused_parameters_true", "backend=tcp"});
}

TEST(Faults, ExhaustedDataOnOneRankIsNamedAndTheEpochFinished) {
  TempFolder folder;
  Ranks ranks =
      start(folder.path(), 2, {"fault=exhausted", "fault_rank=1", "epochs=1", "steps=-1"});
  expect_all_ok(ranks);
  EXPECT_THAT(ranks.log(0), HasSubstr("no data left on rank 1 after 17 batches"));
  EXPECT_THAT(ranks.log(0), HasSubstr("done steps=20"));
}

TEST(Resume, AfterKillAtARandomStepIsBitwiseEqual) {
  TempFolder folder;
  const Words common = {"epochs=3",    "steps=-1",      "batches=20",
                        "dropout=0.2", "checkpoints=1", "save_every=1"};
  const auto whole = train(folder.path() / "whole", 2, common);
  Random random({static_cast<std::uint64_t>(::getpid())});
  const int step = 2 + static_cast<int>(random.below(26));
  SCOPED_TRACE("killed in step " + std::to_string(step));
  const fs::path dir = folder.path() / "killed";
  make_folders(dir);
  Words words = common;
  for (const char* word : {"fault=kill", "fault_rank=1"}) words.push_back(word);
  words.push_back("fault_step=" + std::to_string(step));
  Ranks killed = start(dir, 2, words);
  for (const ExitStatus& status : killed.wait()) EXPECT_FALSE(status.ok());
  const auto resumed = train(dir, 2, common);
  EXPECT_EQ(largest_difference(whole, resumed), 0);
}

TEST(Resume, WithAnotherWorldSize) {
  TempFolder folder;
  const fs::path dir = folder.path();
  // Two ranks, batches of 4: stops in the middle of the first epoch; then one rank goes on.
  train(dir, 2, {"steps=6", "epochs=2", "batches=20", "checkpoints=1"});
  Ranks ranks = start(dir, 1, {"steps=-1", "epochs=2", "batches=20", "checkpoints=1"});
  expect_all_ok(ranks);
  EXPECT_THAT(ranks.log(0), HasSubstr("epoch 1, batch 12, step 6"));
  EXPECT_THAT(ranks.log(0),
              HasSubstr("1 rank instead of 2: what is left of epoch 1 is dealt out anew"));
  EXPECT_THAT(ranks.log(0), HasSubstr("done steps=34"));  // 6 + 8 + 20
  EXPECT_THAT(ranks.log(0), testing::ContainsRegex("items/s, .*eta "));
}

TEST(Resume, WithAnotherNumberTwiceInOneEpochSeesEachBatchOnce) {
  TempFolder folder;
  const Words common = {"epochs=1", "batches=20", "batch=1", "checkpoints=1", "no_valid=1"};
  const auto go = [&](int ranks, const char* steps, const Words& more = {}) {
    Words words = common;
    words.push_back(steps);
    for (const std::string& word : more) words.push_back(word);
    Ranks started = start(folder.path(), ranks, words);
    expect_all_ok(started);
    return started.log(0);
  };
  go(2, "steps=3");              // 6 of 20
  go(4, "steps=5");              // 8 more
  EXPECT_THAT(go(3, "steps=6"),  // 3 more
              HasSubstr("0.75 times as many utterances per step"));
  EXPECT_THAT(go(1, "steps=-1", {"accum=2"}),  // the last 3, in windows of 2
              testing::AllOf(HasSubstr("done steps=8"), HasSubstr("a step now takes 1 x 2")));
}

TEST(Resume, DamagedNewestCheckpointFallsBack) {
  TempFolder folder;
  const Words common = {"epochs=2", "steps=-1", "batches=20", "checkpoints=1", "save_every=4"};
  const auto whole = train(folder.path(), 2, common);
  const auto newest = CheckpointStore::newest(folder.path() / "checkpoints");
  ASSERT_TRUE(newest);
  fs::resize_file(newest->folder / "model.safetensors", 300);
  Ranks ranks = start(folder.path(), 2, common);
  expect_all_ok(ranks);
  EXPECT_THAT(ranks.log(0), HasSubstr("cannot be used"));
  EXPECT_EQ(largest_difference(whole, final_weights(folder.path())), 0);
}

TEST(Ddp, EveryRankHasTheRunningStatisticsOfRankZero) {
  TempFolder folder;
  train(folder.path(), 2, {"norm=1"});
  const TensorMap zero = read_safetensors(folder.path() / "final-0.safetensors");
  const TensorMap one = read_safetensors(folder.path() / "final-1.safetensors");
  EXPECT_TRUE(zero.at("norm.running_mean").equal(one.at("norm.running_mean")));
  EXPECT_TRUE(zero.at("norm.running_var").equal(one.at("norm.running_var")));
}

// One process with batches of eight, and the same examples over two ranks: in halves, unevenly, all
// on one of them.
TEST(SyncBatchNorm, RanksTrainWithTheStatisticsOfAllExamples) {
  TempFolder folder;
  const Words common = {"norm=1", "steps=20", "batches=20", "batch=8", "clip=0.5", "no_valid=1"};
  const auto at = [&](const std::string& name, int world, const Words& more) {
    Words words = common;
    words.insert(words.end(), more.begin(), more.end());
    return train(folder.path() / name, world, words);
  };
  const auto alone = at("alone", 1, {});
  EXPECT_GT(largest_difference(alone, at("apart", 2, {"cut=4"})), 1e-4);
  EXPECT_LT(largest_difference(alone, at("halves", 2, {"cut=4", "sync=1"})), 1e-12);
  EXPECT_LT(largest_difference(alone, at("uneven", 2, {"cut=5", "sync=1"})), 1e-12);
  EXPECT_LT(largest_difference(alone, at("one", 2, {"cut=8", "sync=1"})), 1e-12);
  EXPECT_LT(largest_difference(alone, at("tcp", 2, {"cut=5", "sync=1", "backend=tcp"})), 1e-12);
  // What is computed again is counted once.
  EXPECT_LT(largest_difference(alone, at("again", 1, {"recompute=NormBlock"})), 1e-12);
  EXPECT_LT(largest_difference(alone, at("both", 2, {"cut=5", "sync=1", "recompute=NormBlock"})),
            1e-12);
}

TEST(SyncBatchNorm, ABadBatchOnOneRankDropsTheStepOnAll) {
  TempFolder folder;
  const Words common = {"norm=1", "steps=10", "batches=30", "batch=8", "cut=5", "sync=1"};
  Words words = common;
  for (const char* word : {"fault=nan", "fault_rank=1", "fault_step=4", "max_nonfinite=3"})
    words.push_back(word);
  Ranks ranks = start(folder.path(), 2, words);
  for (const ExitStatus& status : ranks.wait()) EXPECT_EQ(status.exit_code, 3) << ranks.log(0);
  EXPECT_THAT(ranks.log(0), HasSubstr("NaN or infinite in 3 steps in a row"));
}

TEST(Precision, Bf16WeightsAreSummedOverGloo) {
  TempFolder folder;
  train(folder.path(), 2, {"precision=bf16-true"});
}

TEST(Preemption, InTheMiddleOfAWindowTheStepIsLeftAndComputedAgain) {
  TempFolder folder;
  const Words common = {"epochs=2",      "steps=-1",    "batches=20",
                        "checkpoints=1", "dropout=0.2", "accum=4"};
  const auto whole = train(folder.path() / "whole", 2, common);
  const fs::path dir = folder.path() / "stopped";
  make_folders(dir);
  Words words = common;
  for (const char* word : {"fault=sigterm", "fault_rank=1", "fault_step=5"}) words.push_back(word);
  Ranks stopped = start(dir, 2, words);
  for (const ExitStatus& status : stopped.wait()) EXPECT_EQ(status.exit_code, 85) << stopped.log(0);
  EXPECT_EQ(largest_difference(whole, train(dir, 2, common)), 0);
}

TEST(Preemption, SigtermOnOneRankInAValidationIsMadeUpForAfterTheResume) {
  for (const char* strategy : {"strategy=ddp", "strategy=fsdp"}) {
    TempFolder folder;
    const Words common = {"epochs=2", "steps=-1", "batches=20", "checkpoints=1", strategy};
    const auto run = [&](const fs::path& where) {
      make_folders(where);
      Ranks ranks = start(where, 2, common);
      expect_all_ok(ranks);
    };
    run(folder.path() / "whole");
    const fs::path dir = folder.path() / "stopped";
    make_folders(dir);
    Words words = common;
    for (const char* word : {"fault=sigterm_valid", "fault_rank=1", "fault_step=10"})
      words.push_back(word);
    Ranks stopped = start(dir, 2, words);
    for (const ExitStatus& status : stopped.wait())
      EXPECT_EQ(status.exit_code, 85) << stopped.log(0);
    run(dir);
    EXPECT_EQ(read_file(folder.path() / "whole/checkpoints/best.json"),
              read_file(dir / "checkpoints/best.json"));
  }
}

TEST(Preemption, SigtermOnOneRankStopsAllAfterTheSameStepAndResumes) {
  TempFolder folder;
  const Words common = {"epochs=2", "steps=-1", "batches=20", "checkpoints=1", "dropout=0.2"};
  const auto whole = train(folder.path() / "whole", 2, common);
  const fs::path dir = folder.path() / "stopped";
  make_folders(dir);
  Words words = common;
  for (const char* word : {"fault=sigterm", "fault_rank=1", "fault_step=6"}) words.push_back(word);
  Ranks stopped = start(dir, 2, words);
  for (const ExitStatus& status : stopped.wait()) EXPECT_EQ(status.exit_code, 85) << stopped.log(0);
  EXPECT_EQ(largest_difference(whole, train(dir, 2, common)), 0);
}

}  // namespace
}  // namespace tutti::trainer
