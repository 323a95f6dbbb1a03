// FSDP with several ranks as real processes: the same results as other strategies, the same words
// for the same faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/places.h"
#include "tests/trainer/ranks.h"
#include "tutti/trainer/checkpoint/store.h"

namespace tutti::trainer {
namespace {

using testing::HasSubstr;

std::vector<double> gradient_norms(const fs::path& dir) {
  std::vector<double> out;
  for (const std::string& line : split(read_file(dir / "metrics.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json json = parse_json(line, "metrics.jsonl");
    if (json.contains("train/grad_norm")) out.push_back(json["train/grad_norm"].get<double>());
  }
  return out;
}

TEST(Fsdp, RanksWithoutUtterancesTakePartWithNoWeight) {
  TempFolder folder;
  const Words alone = {"epochs=5", "steps=-1", "batches=4", "batch=1", "accum=3", "depth=2"};
  const Words ranks = {"epochs=5", "steps=-1", "batches=4", "batch=1", "pad=1", "depth=2"};
  EXPECT_LT(largest_difference(flattened(train(folder.path() / "alone", 1, alone)),
                               train_sharded(folder.path() / "fsdp", 3, ranks)),
            1e-12);
}

TEST(Fsdp, GivesTheWeightsAndGradientNormsOfOtherStrategies) {
  TempFolder folder;
  const auto at_world = [](int world, int accumulate) -> Words {
    const int per_batch = 16 / world / accumulate;
    return {"steps=20",
            "batches=" + std::to_string(20 * world * accumulate),
            "batch=" + std::to_string(per_batch),
            "accum=" + std::to_string(accumulate),
            "clip=0.3",
            "metrics=1",
            "log_every=1"};
  };
  const auto single = flattened(train(folder.path() / "w1", 1, at_world(1, 2)));
  const auto ddp = flattened(train(folder.path() / "w2", 2, at_world(2, 2)));
  const auto two = train_sharded(folder.path() / "f2", 2, at_world(2, 2));
  const auto four = train_sharded(folder.path() / "f4", 4, at_world(4, 2));
  ASSERT_EQ(single.size(), 4u);
  EXPECT_LT(largest_difference(single, ddp), 1e-12);
  EXPECT_LT(largest_difference(single, two), 1e-12);
  EXPECT_LT(largest_difference(single, four), 1e-12);
  const auto norms = gradient_norms(folder.path() / "w1");
  ASSERT_EQ(norms.size(), 20u);
  for (const char* other : {"w2", "f2", "f4"})
    EXPECT_THAT(gradient_norms(folder.path() / other),
                testing::Pointwise(testing::DoubleNear(1e-12), norms))
        << other;
}

TEST(Fsdp, UnitsByClassGiveTheSame) {
  TempFolder folder;
  const Words words = {"steps=10", "batches=40", "batch=4", "clip=0.3"};
  const auto by_size = train_sharded(folder.path() / "size", 2, words);
  Words by_class = words;
  by_class.push_back("unit_class=Linear");
  EXPECT_LT(largest_difference(by_size, train_sharded(folder.path() / "class", 2, by_class)),
            1e-12);
}

TEST(Fsdp, EveryKindOfShardingGivesTheSame) {
  TempFolder folder;
  const auto ddp = flattened(train(folder.path() / "ddp", 4, kDeep));
  const auto check = [&](const std::string& name, const Words& more) {
    SCOPED_TRACE(name);
    EXPECT_LT(largest_difference(ddp, train_sharded(folder.path() / name, 4, with(kDeep, more))),
              1e-12);
  };
  check("full", {"in_flight=1"});
  check("grad_op", {"sharding=grad_op"});
  check("offload", {"offload=1", "in_flight=3"});
  check("recompute", {"recompute=Block"});
  check("by size", {"unit_class=", "unit_min=100"});
  // Two nodes of two: both hold the whole model, so the first node's parts are all of it.
  const fs::path dir = folder.path() / "hybrid";
  make_folders(dir);
  Ranks ranks = start(dir, 4, with(kDeep, {"strategy=fsdp", "sharding=hybrid", "local_world=2"}));
  expect_all_ok(ranks);
  for (const int first : {0, 2}) {
    const TensorMap left = final_weights(dir, first), right = final_weights(dir, first + 1);
    TensorMap whole;
    for (const auto& [name, part] : left) whole[name] = at::cat({part, right.at(name)});
    EXPECT_LT(largest_difference(ddp, whole), 1e-12) << "hybrid, node of rank " << first;
  }
}

// Weights that travel in the type they are multiplied in change nothing but the traffic; sums in
// bfloat16 do.
TEST(Fsdp, GatheringInTheComputingTypeIsMixedPrecisionAsUsual) {
  TempFolder folder;
  const Words words = with(kDeep, {"precision=bf16-mixed"});
  const auto plain = train_sharded(folder.path() / "plain", 2, words);
  const auto gathered = train_sharded(folder.path() / "bf16", 2, with(words, {"gather=bf16"}));
  EXPECT_LT(largest_difference(plain, gathered), 1e-3);
  const auto reduced = train_sharded(folder.path() / "sums", 2, with(words, {"reduce=bf16"}));
  const double difference = largest_difference(plain, reduced);
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 2e-2);
}

TEST(FsdpCheckpoint, SavedWithFourRanksResumedWithTwoOfDdpAndBack) {
  TempFolder folder;
  const fs::path whole = folder.path() / "whole", dir = folder.path() / "chain";
  train(whole, 1, checkpointed_run(4, 20));
  train_sharded(dir, 4, checkpointed_run(1, 6));
  make_folders(dir);
  const auto run = [&](int world, const Words& words, const std::string& told) {
    Ranks ranks = start(dir, world, words);
    expect_all_ok(ranks);
    EXPECT_THAT(ranks.log(0), HasSubstr(told));
  };
  run(2, with(checkpointed_run(2, 13), {"strategy=ddp"}), "step 6");
  run(4, with(checkpointed_run(1, 17), {"strategy=fsdp", "unit_min=1000"}), "step 13");
  run(2, with(checkpointed_run(2, 20), {"strategy=fsdp"}), "step 17");
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const TensorMap a = last_checkpoint(whole, file), b = last_checkpoint(dir, file);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_LT(largest_difference(a, b), 1e-12) << file;
  }
  const TensorMap a = last_checkpoint(whole, "extra.safetensors");
  const TensorMap b = last_checkpoint(dir, "extra.safetensors");
  for (const char* name : {"trained/first.weight", "trained/second.bias"})
    EXPECT_LT((a.at(name) - b.at(name)).abs().max().item<double>(), 1e-12) << name;
  const std::string average = "valid.loss.ave_2best.safetensors";
  EXPECT_LT(largest_difference(read_safetensors(whole / "checkpoints" / average),
                               read_safetensors(dir / "checkpoints" / average)),
            1e-12);
}

// The weights and buffers of a run's last checkpoint.
TensorMap saved_model(const fs::path& dir, int world, Words words) {
  make_folders(dir);
  words.insert(words.end(), {"checkpoints=1", "no_valid=1"});
  Ranks ranks = start(dir, world, words);
  expect_all_ok(ranks);
  return last_checkpoint(dir, "model.safetensors");
}

// Its statistics are those of all ranks, also where one has nothing to compute.
TEST(FsdpSyncBatchNorm, GivesTheWeightsAndStatisticsOfOneProcess) {
  TempFolder folder;
  const Words common = {"norm=1", "epochs=2", "steps=-1", "batches=10", "batch=8", "unit_min=20"};
  const TensorMap alone = saved_model(folder.path() / "alone", 1, common);
  ASSERT_TRUE(alone.count("blocks.1.norm.running_var"));
  const Words sync = with(common, {"strategy=fsdp", "sync=1"});
  const auto at = [&](const std::string& name, const Words& more) {
    return largest_difference(alone, saved_model(folder.path() / name, 2, with(sync, more)));
  };
  EXPECT_LT(at("uneven", {"cut=5"}), 1e-12);
  EXPECT_LT(at("one rank", {"cut=8"}), 1e-12);
  EXPECT_LT(at("again", {"cut=3", "recompute=NormBlock", "unit_class=NormBlock"}), 1e-12);
}

// Each has its own loss, limit and state; they are saved with two ranks and go on with one.
TEST(FsdpOptimizers, TwoTrainAsInOneProcess) {
  TempFolder folder;
  const auto words = [](int every, int steps) -> Words {
    return {"critic_every=" + std::to_string(every),
            "batches=20",
            "batch=8",
            "no_valid=1",
            "checkpoints=1",
            "clip=0.3",
            "steps=" + std::to_string(steps)};
  };
  const auto run = [&](const std::string& name, int world, const Words& more) {
    make_folders(folder.path() / name);
    Ranks ranks = start(folder.path() / name, world, more);
    expect_all_ok(ranks);
  };
  const auto compare = [&](const std::string& a, const std::string& b) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      const TensorMap left = last_checkpoint(folder.path() / a, file);
      const TensorMap right = last_checkpoint(folder.path() / b, file);
      ASSERT_EQ(left.size(), right.size()) << file;
      EXPECT_LT(largest_difference(left, right), 1e-12) << b << " " << file;
    }
  };
  run("alone", 1, words(1, 12));
  run("ddp", 2, with(words(1, 12), {"cut=5", "strategy=ddp"}));
  compare("alone", "ddp");
  run("fsdp", 2, with(words(1, 7), {"cut=5", "strategy=fsdp"}));
  run("fsdp", 1, with(words(1, 9), {"cut=5", "accum=2", "strategy=single"}));
  run("fsdp", 2, with(words(1, 12), {"cut=5", "strategy=fsdp", "unit_class=Linear"}));
  compare("alone", "fsdp");
  run("one rank", 2, with(words(1, 12), {"cut=8", "strategy=fsdp"}));  // the other has no data
  compare("alone", "one rank");
  // In every second step there is no critic's loss.
  run("alone2", 1, words(2, 9));
  run("grad_op", 2, with(words(2, 9), {"cut=5", "strategy=fsdp", "sharding=grad_op"}));
  compare("alone2", "grad_op");
}

// The same bytes as one process would write: shapes, order, checksums.
TEST(FsdpCheckpoint, IsTheFormatOfEveryStrategy) {
  TempFolder folder;
  train_sharded(folder.path(), 4, checkpointed_run(1, 3));
  const auto found = CheckpointStore::newest(folder.path() / "checkpoints");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->folder.filename(), "step-00000003");
  EXPECT_EQ(found->checkpoint.model.at("first.weight").sizes(), (std::vector<std::int64_t>{16, 6}));
  EXPECT_EQ(found->checkpoint.optimizer.at("optimizer/exp_avg/first.weight").sizes(),
            (std::vector<std::int64_t>{16, 6}));
  fs::resize_file(found->folder / "model.safetensors", 300);
  Ranks ranks = start(folder.path(), 2, with(checkpointed_run(2, 4), {"strategy=fsdp"}));
  expect_all_ok(ranks);
  EXPECT_THAT(ranks.log(0), HasSubstr("cannot be used"));
}

bool has_unfinished_save(const fs::path& checkpoints) {
  if (!fs::exists(checkpoints)) return false;
  for (const auto& entry : fs::directory_iterator(checkpoints))
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) return true;
  return false;
}

TEST(FsdpCheckpoint, KillInTheMiddleOfASaveLeavesThePreviousOne) {
  TempFolder folder;
  const Words words = {"depth=4",      "width=256",     "batches=40",       "batch=2",
                       "steps=2000",   "epochs=500",    "unit_class=Block", "checkpoints=1",
                       "save_every=1", "strategy=fsdp", "no_valid=1"};
  const fs::path checkpoints = folder.path() / "checkpoints";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  bool in_the_middle = false;
  while (!in_the_middle && std::chrono::steady_clock::now() < deadline) {
    Ranks ranks = start(folder.path(), 2, words);
    // At least one is whole, and another is being written.
    while (!(fs::exists(checkpoints / "last") && has_unfinished_save(checkpoints)) &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    for (Process& process : ranks.processes) process.signal_group(SIGKILL);
    for (const ExitStatus& status : ranks.wait()) EXPECT_FALSE(status.ok());
    in_the_middle = has_unfinished_save(checkpoints);
  }
  ASSERT_TRUE(in_the_middle);
  const auto found = CheckpointStore::newest(checkpoints);
  ASSERT_TRUE(found);
  const int step = found->checkpoint.trainer["step"];
  Words again = words;
  again.push_back("steps=" + std::to_string(step + 2));
  Ranks ranks = start(folder.path(), 2, again);
  expect_all_ok(ranks);
  EXPECT_THAT(ranks.log(0), HasSubstr("resumed from"));
  EXPECT_FALSE(has_unfinished_save(checkpoints));
}

// Rank 1 is stuck until its node is lost; the other gathers the shards of both from the checkpoint.
TEST(FsdpElastic, ALostNodeIsGoneOnWithout) {
  TempFolder folder;
  const fs::path& dir = folder.path();
  std::vector<Process> agents;
  for (int node = 0; node < 2; ++node) {
    const std::string number = std::to_string(node), bin = in_bin();
    const Words launch = {bin + "/tutti",
                          "launch",
                          "--nproc_per_node",
                          "1",
                          "--nnodes",
                          "1:2",
                          "--node_rank",
                          number,
                          "--run_folder",
                          dir.string(),
                          "--join_timeout",
                          "60",
                          "--",
                          bin + "/trainer_rank"};
    agents.push_back(Process::start(
        {.argv =
             with(launch, {"dir=" + dir.string(), "launched=1", "strategy=fsdp", "checkpoints=1",
                           "save_every=1", "steps=12", "epochs=5", "fault=hang", "fault_rank=1"}),
         .env = {{"OMP_NUM_THREADS", "1"}},
         .stdout_path = dir / ("log-" + number)}));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (!fs::exists(dir / "checkpoints/last") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(agents[1].pid(), SIGKILL);
  const auto status = agents[0].wait_for(std::chrono::seconds(100));
  const std::string log = read_file(dir / "log-0");
  ASSERT_TRUE(status && status->ok()) << log;
  EXPECT_THAT(log, HasSubstr("node 1 is lost"));
  EXPECT_THAT(log, HasSubstr("1 rank instead of 2: what is left of epoch 1 is dealt out anew"));
  EXPECT_THAT(log, HasSubstr("done steps=12"));
}

// Only the rank with that shard sees the infinity; all drop the step.
TEST(FsdpFaults, OverflowInOneShardIsEveryonesDecision) {
  TempFolder folder;
  Ranks ranks =
      start(folder.path(), 2, {"strategy=fsdp", "fault=inf", "fault_rank=1", "steps=12", "clip=1"});
  expect_all_ok(ranks);
  for (const int rank : {0, 1}) EXPECT_THAT(ranks.log(rank), HasSubstr("steps=12 skipped=1"));
  for (const int rank : {0, 1})
    for (const auto& [name, part] : final_weights(folder.path(), rank))
      EXPECT_TRUE(part.isfinite().all().item<bool>()) << name;
}

TEST(FsdpFaults, KilledRankIsNamed) {
  EXPECT_THAT(fault_seen_by_rank_zero("kill", {"strategy=fsdp"}), HasSubstr("rank 1"));
}

TEST(FsdpFaults, StoppedRankIsNamed) {
  EXPECT_THAT(fault_seen_by_rank_zero("stop", {"strategy=fsdp"}, true), HasSubstr("rank 1"));
}

TEST(FsdpFaults, ExceptionReachesTheOthersWithItsText) {
  const std::string log = fault_seen_by_rank_zero("throw", {"strategy=fsdp"});
  EXPECT_THAT(log, HasSubstr("rank 1"));
  EXPECT_THAT(log, HasSubstr("utt_13: the transcript is empty"));
}

TEST(FsdpFaults, DifferentModelIsNamedWithTheDifference) {
  const std::string log = fault_seen_by_rank_zero("shape", {"strategy=fsdp"});
  EXPECT_THAT(log, HasSubstr("rank 1 built another model"));
  EXPECT_THAT(log, HasSubstr("extra [3, 2]"));
}

TEST(FsdpFaults, UnusedParametersAreListedBeforeTheStep) {
  const std::string log = fault_seen_by_rank_zero("unused", {"strategy=fsdp"});
  EXPECT_THAT(log, HasSubstr("rank 1: 3 of 4 parameters got no gradient"));
  EXPECT_THAT(log, HasSubstr("first.weight"));
}

// The rank that cannot compute still takes part in the others' gathers and sums.
TEST(FsdpFaults, NanLossIsDroppedEverywhereThenFatal) {
  const std::string log =
      fault_seen_by_rank_zero("nan", {"strategy=fsdp", "max_nonfinite=4", "accum=2"});
  EXPECT_THAT(log, HasSubstr("dropped on all ranks: the loss of rank 1 is not finite"));
  EXPECT_THAT(log, HasSubstr("the loss of rank 1 was NaN or infinite in 4 steps in a row"));
}

TEST(FsdpFaults, OutOfMemoryIsDroppedEverywhereThenFatal) {
  const std::string log = fault_seen_by_rank_zero("oom", {"strategy=fsdp", "max_oom=3", "accum=2"});
  EXPECT_THAT(log, HasSubstr("dropped on all ranks: rank 1 ran out of memory"));
  EXPECT_THAT(log, HasSubstr("rank 1 ran out of memory in 3 steps in a row"));
}

// Also when the first pass, whose order of gathers is recorded, is the broken one.
TEST(FsdpFaults, OutOfMemoryInTheFirstStepIsDropped) {
  const std::string log =
      fault_seen_by_rank_zero("oom", {"strategy=fsdp", "fault_step=0", "max_oom=3", "no_valid=1"});
  EXPECT_THAT(log, HasSubstr("rank 1 ran out of memory in 3 steps in a row"));
}

TEST(FsdpFaults, ExhaustedDataOnOneRankIsNamedAndTheEpochFinished) {
  TempFolder folder;
  Ranks ranks = start(folder.path(), 2,
                      {"fault=exhausted", "fault_rank=1", "epochs=1", "steps=-1", "strategy=fsdp"});
  expect_all_ok(ranks);
  EXPECT_THAT(ranks.log(0), HasSubstr("no data left on rank 1 after 17 batches"));
  EXPECT_THAT(ranks.log(0), HasSubstr("done steps=20"));
}

}  // namespace
}  // namespace tutti::trainer
