// `tutti train` on two hosts of network namespaces, one of which is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/beds/two_hosts.h"
#include "tests/places.h"
#include "tests/systems/toy_training.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;

using TwoHosts = tests::TwoHosts;

TEST_F(TwoHosts, ALostHostCostsNoUtterance) {
  if (!python_has_torch()) GTEST_SKIP() << TUTTI_PYTHON " has no torch here";
  const ToyTraining toy(4, 100);
  const Words command = {
      in_bin("tutti"),
      "train",
      "--config",
      "training.yaml",
      "trainer.devices=2",
      "trainer.num_nodes=2",
      "trainer.max_epochs=1",
      "dataloader.train.batch_size=2",
      "+trainer.callbacks=[{_target_: model_checkpoint, every_n_train_steps: 4}]"};
  std::vector<Process> hosts;
  for (const int node : {0, 1})
    hosts.push_back(
        Process::start({.argv = launch_on(node, "1:2", {"--run_folder", toy.path()}, command),
                        .env = {{"OMP_NUM_THREADS", "1"}},
                        .cwd = toy.path(),
                        .stdout_path = toy.path() / ("host-" + std::to_string(node) + ".log")}));
  const auto log = [&](int node) {
    return read_file(toy.path() / ("host-" + std::to_string(node) + ".log"));
  };
  ASSERT_TRUE(ToyTraining::wait_until(hosts[0], [&] { return toy.steps() >= 5; }))
      << log(0) << log(1);
  ::kill(hosts[1].pid(), SIGKILL);  // its ranks die with it
  const auto status = hosts[0].wait_for(std::chrono::minutes(5));
  const std::string text = log(0);
  ASSERT_TRUE(status && status->exit_code == 0) << text;
  EXPECT_THAT(text, HasSubstr("node 1 is lost: going on with node 0 (2 ranks instead of 4)"));
  EXPECT_THAT(text, HasSubstr("0.5 times as many utterances per step, at the same learning rate"));
  std::smatch resumed;
  ASSERT_TRUE(std::regex_search(text, resumed, std::regex("resumed from .*, step ([0-9]+)")))
      << text;
  const int by_four = std::stoi(resumed[1]);
  ASSERT_LT(by_four, 12);
  double seen = 0, ids = 0, squares = 0;  // rows are means over the ranks
  for (const Json& row : toy.metrics("train/seen")) {
    const double ranks = row["step"].get<int>() <= by_four ? 4 : 2;
    seen += ranks * row["train/seen"].get<double>();
    ids += ranks * row["train/seen_id"].get<double>();
    squares += ranks * row["train/seen_sq"].get<double>();
  }
  EXPECT_NEAR(seen, 96, 1e-3);
  EXPECT_NEAR(ids, 95 * 96 / 2, 1e-2);
  EXPECT_NEAR(squares, 95 * 96 * 191 / 6, 1);
}

}  // namespace
}  // namespace tutti::systems
