// Training on two hosts without a scheduler: `tutti launch` on each, two ranks each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/beds/two_hosts.h"
#include "tests/places.h"
#include "tests/trainer/ranks.h"

namespace tutti::trainer {
namespace {

using testing::HasSubstr;

class TwoHosts : public tests::TwoHosts {
 protected:
  // The weights one process gets from the same examples, in batches four times as large.
  TensorMap alone(const Words& words) {
    Words all = {"batch=16", "batches=20"};
    all.insert(all.end(), words.begin(), words.end());
    return train(folder_.path() / "alone", 1, all);
  }
  std::vector<CommandResult> together(const Words& meet, const Words& words) {
    make_folders(dir());
    Words command = {in_bin("trainer_rank"), "dir=" + dir().string(), "launched=1", "batch=4",
                     "batches=80"};
    command.insert(command.end(), words.begin(), words.end());
    return launch_on_both(meet, command);
  }
  void expect_weights_of(const TensorMap& expected) {
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_LT(largest_difference(expected, final_weights(dir(), rank)), 1e-12) << rank;
  }
  fs::path dir() const { return folder_.path() / "together"; }
};

TEST_F(TwoHosts, TrainToTheWeightsOfOneProcess) {
  const Words words = {"epochs=2", "steps=-1"};
  const auto results = together({"--master_addr", "10.231.7.1", "--master_port", "29410"}, words);
  for (const auto& result : results) ASSERT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_THAT(results[0].out + results[0].err, HasSubstr("tutti launch"));
  expect_weights_of(alone(words));
}

TEST_F(TwoHosts, ShardedTrainingGivesTheWeightsOfOneProcess) {
  const Words words = {"epochs=1", "steps=-1", "depth=2"};
  Words sharded = words;
  for (const char* word : {"strategy=fsdp", "sharding=hybrid", "checkpoints=1"})
    sharded.push_back(word);
  const auto results = together({"--run_folder", folder_.path()}, sharded);
  for (const auto& result : results) ASSERT_EQ(result.exit_code, 0) << result.describe();
  const auto expected = alone(words);
  const auto saved = read_safetensors(dir() / "checkpoints" / "last" / "model.safetensors");
  EXPECT_LT(largest_difference(expected, saved), 1e-12);
}

TEST_F(TwoHosts, KilledRankIsStartedAgainAndTheWeightsAreTheSame) {
  const Words words = {"epochs=2", "steps=-1"};
  Words killed = words;
  for (const char* word :
       {"checkpoints=1", "save_every=1", "fault=kill", "fault_rank=3", "fault_step=23"})
    killed.push_back(word);
  const auto results = together({"--run_folder", folder_.path(), "--max_restarts", "2"}, killed);
  for (const auto& result : results) ASSERT_EQ(result.exit_code, 0) << result.describe();
  const std::string text = results[1].out + results[1].err;
  EXPECT_THAT(text, HasSubstr("SIGKILL"));
  EXPECT_THAT(results[0].out + results[0].err, HasSubstr("resumed from"));
  expect_weights_of(alone(words));
}

}  // namespace
}  // namespace tutti::trainer
