// Two hosts made of network namespaces: `tutti launch` on each, over a real (virtual) wire, without
// a shared loopback. Needs root; skips with the reason otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"

namespace tutti::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

const std::string kTutti = TUTTI_BIN_DIR "/tutti";
const std::string kProbe = TUTTI_BIN_DIR "/launch_probe";

class TwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    for (const auto& line : std::vector<std::vector<std::string>>{
             {"netns", "add", host(0)},
             {"netns", "add", host(1)},
             {"link", "add", "e0", "netns", host(0), "type", "veth", "peer", "name", "e0", "netns",
              host(1)},
             {"-n", host(0), "addr", "add", "10.231.7.1/24", "dev", "e0"},
             {"-n", host(1), "addr", "add", "10.231.7.2/24", "dev", "e0"},
             {"-n", host(0), "link", "set", "lo", "up"},
             {"-n", host(1), "link", "set", "lo", "up"},
             {"-n", host(0), "link", "set", "e0", "up"},
             {"-n", host(1), "link", "set", "e0", "up"}}) {
      const auto result = ip(line);
      if (!result.ok()) GTEST_SKIP() << "no network namespaces here: " << result.describe();
    }
  }
  void TearDown() override {
    for (const int node : {0, 1}) ip({"netns", "del", host(node)});
  }
  static CommandResult ip(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ip");
    return run_command({.argv = arguments, .timeout = 20s});
  }
  static std::string host(int node) {
    return "tutti" + std::to_string(::getpid()) + (node == 0 ? "a" : "b");
  }
  std::vector<CommandResult> run_both(const std::vector<std::string>& meet,
                                      const std::vector<std::string>& command) {
    std::vector<CommandResult> results(2);
    std::vector<std::thread> threads;
    for (int node = 0; node < 2; ++node) {
      threads.emplace_back([&, node] {
        std::vector<std::string> argv = {"ip",
                                         "netns",
                                         "exec",
                                         host(node),
                                         kTutti,
                                         "launch",
                                         "--nproc_per_node",
                                         "2",
                                         "--nnodes",
                                         "2",
                                         "--node_rank",
                                         std::to_string(node)};
        argv.insert(argv.end(), meet.begin(), meet.end());
        argv.push_back("--");
        argv.insert(argv.end(), command.begin(), command.end());
        results[node] =
            run_command({.argv = argv, .env = {{"TUTTI_SECRET", "between us"}}, .timeout = 100s});
      });
    }
    for (auto& thread : threads) thread.join();
    return results;
  }
  TempFolder folder_;
};

TEST_F(TwoHosts, TrainTogetherAtAMasterAddress) {
  const auto results = run_both({"--master_addr", "10.231.7.1", "--master_port", "29400"},
                                {kProbe, folder_.path(), "50"});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(read_file(folder_.path() / "rank-3.done"), "4 1 1 2 0 tutti launch");
}

TEST_F(TwoHosts, TrainTogetherThroughASharedFolder) {
  const auto results = run_both({"--run_folder", folder_.path()}, {kProbe, folder_.path(), "50"});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.describe();
}

TEST_F(TwoHosts, RankKilledOnOneHostIsNamedOnBoth) {
  const auto results = run_both({"--run_folder", folder_.path()},
                                {kProbe, folder_.path(), "1000000", "kill", "2", "20"});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 137) << result.describe();
    EXPECT_THAT(result.err, AllOf(HasSubstr("rank 2 on "), HasSubstr("SIGKILL")));
  }
}

}  // namespace
}  // namespace tutti::launch
