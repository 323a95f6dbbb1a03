// `tutti launch` on each of two hosts made of network namespaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/beds/two_hosts.h"
#include "tests/places.h"
#include "tutti/core/file.h"

namespace tutti::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kProbe = in_bin("launch_probe");

using TwoHosts = tests::TwoHosts;

TEST_F(TwoHosts, TrainTogetherAtAMasterAddress) {
  const auto results = launch_on_both({"--master_addr", "10.231.7.1", "--master_port", "29400"},
                                      {kProbe, folder_.path(), "50"});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(read_file(folder_.path() / "rank-3.done"), "4 1 1 2 0 tutti launch");
}

TEST_F(TwoHosts, TrainTogetherThroughASharedFolder) {
  const auto results =
      launch_on_both({"--run_folder", folder_.path()}, {kProbe, folder_.path(), "50"});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.describe();
}

// Rank 0 says where it is while the wire is down: its address there is not up, and still the right one.
TEST_F(TwoHosts, MeetWhenTheWireIsDownWhileRankZeroStarts) {
  const std::string count = "cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '";  // who listens
  const std::string script =
      "cd \"$0\"; case $RANK in\n"
      "2) ip link set e0 down; touch down; until [ -e up ]; do sleep 0.02; done;"
      " ip link set e0 up;;\n"
      "0) until [ -e down ]; do sleep 0.02; done; n=$(" +
      count + "); (until [ $(" + count +
      ") -gt $n ]; do sleep 0.02; done; touch up) & ;;\nesac\nexec \"$1\" . 50";
  const auto results = launch_on_both({"--run_folder", folder_.path()},
                                      {"sh", "-c", script, folder_.path(), kProbe});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.describe();
}

TEST_F(TwoHosts, RankKilledOnOneHostIsNamedOnBoth) {
  const auto results = launch_on_both({"--run_folder", folder_.path()},
                                      {kProbe, folder_.path(), "1000000", "kill", "2", "20"});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 137) << result.describe();
    EXPECT_THAT(result.err, AllOf(HasSubstr("rank 2 on "), HasSubstr("SIGKILL")));
  }
}

// The wire breaks, nothing dies: the host that keeps the meeting place goes on alone, the other ends.
TEST_F(TwoHosts, GoOnWithOneWhenTheWireIsCut) {
  const std::string script =
      "cd \"$0\"; touch up-$TUTTI_RESTART_COUNT-$RANK; "
      "[ $TUTTI_RESTART_COUNT = 0 ] && exec \"$1\" . 1000000; exec \"$1\" . 20";
  std::vector<Process> agents;
  for (const int node : {0, 1})
    agents.push_back(
        Process::start({.argv = launch_on(node, "1:2", {"--run_folder", folder_.path()},
                                          {"sh", "-c", script, folder_.path(), kProbe}),
                        .stdout_path = folder_.path() / ("log-" + std::to_string(node))}));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto is_up = [&] {
    for (const char* rank : {"up-0-0", "up-0-1", "up-0-2", "up-0-3"})
      if (!std::filesystem::exists(folder_.path() / rank)) return false;
    return true;
  };
  while (!is_up() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(is_up());
  ASSERT_TRUE(ip({"-n", host(1), "link", "set", "e0", "down"}).ok());
  const auto status = agents[0].wait_for(std::chrono::seconds(80));
  const std::string log = read_file(folder_.path() / "log-0");
  ASSERT_TRUE(status && status->exit_code == 0) << log;
  EXPECT_THAT(log, HasSubstr("node 1 is lost: going on with node 0 (2 ranks instead of 4)"));
  EXPECT_EQ(read_file(folder_.path() / "rank-1.done"), "2 1 0 1 1 tutti launch");
  const auto other = agents[1].wait_for(std::chrono::seconds(80));
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->exit_code, 5) << read_file(folder_.path() / "log-1");
}

}  // namespace
}  // namespace tutti::launch
