// FSDP with several ranks as real processes: the same results as other strategies, the same words
// for the same faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/ranks.h"

namespace tutti::trainer {
namespace {

using testing::HasSubstr;

// The weights of a sharded run: every rank wrote its parts of the flattened parameters.
TensorMap train_sharded(const fs::path& dir, int world_size, Words words) {
  make_folders(dir);
  words.push_back("strategy=fsdp");
  Ranks ranks = start(dir, world_size, words);
  expect_all_ok(ranks);
  TensorMap whole;
  std::vector<TensorMap> parts;
  for (int rank = 0; rank < world_size; ++rank) parts.push_back(final_weights(dir, rank));
  for (const auto& [name, part] : parts[0]) {
    std::vector<at::Tensor> pieces;
    for (const TensorMap& of_rank : parts) pieces.push_back(of_rank.at(name));
    whole[name] = at::cat(pieces);
  }
  return whole;
}

TensorMap flattened(TensorMap tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.reshape({-1});
  return tensors;
}

std::vector<double> gradient_norms(const fs::path& dir) {
  std::vector<double> out;
  for (const std::string& line : split(read_file(dir / "metrics.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json json = parse_json(line, "metrics.jsonl");
    if (json.contains("train/grad_norm")) out.push_back(json["train/grad_norm"].get<double>());
  }
  return out;
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
