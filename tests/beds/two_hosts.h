// Two hosts made of network namespaces, with a real (virtual) wire between them and no shared
// loopback, and `tutti launch` on each. Needs root; tests skip with the reason otherwise.
//
//   using TwoHosts = tests::TwoHosts;
//   TEST_F(TwoHosts, Meet) {
//     const auto results = launch_on_both({"--run_folder", folder_.path()}, {"./program"});
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"

namespace tutti::tests {

class TwoHosts : public testing::Test {
 protected:
  using Words = std::vector<std::string>;

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    for (const auto& line :
         std::vector<Words>{{"netns", "add", host(0)},
                            {"netns", "add", host(1)},
                            {"link", "add", "e0", "netns", host(0), "type", "veth", "peer", "name",
                             "e0", "netns", host(1)},
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
  static CommandResult ip(Words arguments) {
    arguments.insert(arguments.begin(), "ip");
    return run_command({.argv = arguments, .timeout = std::chrono::seconds(20)});
  }
  static std::string host(int node) {
    return "tutti" + std::to_string(::getpid()) + (node == 0 ? "a" : "b");
  }
  // The command line of one host's two ranks. `nodes`: of --nnodes; `meet`: other options of
  // `tutti launch`.
  static Words launch_on(int node, const std::string& nodes, const Words& meet,
                         const Words& command) {
    Words argv = {"ip", "netns", "exec", host(node), in_bin("tutti"), "launch"};
    const Words place = {"--nproc_per_node",  "2", "--nnodes", nodes, "--node_rank",
                         std::to_string(node)};
    argv.insert(argv.end(), place.begin(), place.end());
    argv.insert(argv.end(), meet.begin(), meet.end());
    argv.push_back("--");
    argv.insert(argv.end(), command.begin(), command.end());
    return argv;
  }
  std::vector<CommandResult> launch_on_both(const Words& meet, const Words& command) {
    std::vector<CommandResult> results(2);
    std::vector<std::thread> threads;
    for (int node = 0; node < 2; ++node) {
      threads.emplace_back([&, node] {
        results[static_cast<std::size_t>(node)] =
            run_command({.argv = launch_on(node, "2", meet, command),
                         .env = {{"TUTTI_SECRET", "between us"}},
                         .timeout = std::chrono::seconds(100)});
      });
    }
    for (auto& thread : threads) thread.join();
    return results;
  }
  TempFolder folder_;
};

}  // namespace tutti::tests
