// A real scheduler for the length of a test: tests/beds/NAME/up.sh and down.sh.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/parallel/client.h"

namespace tutti::parallel {

// Items that run on workers of a bed.
namespace bed_items {
Json hundred_bytes(std::uint64_t index);  // 1 ms; always the same text for an index
Json where(std::uint64_t index);  // 20 ms; {"host", "pid", "job", "gpus"} of the worker that ran it
}  // namespace bed_items

// Suites of one bed share it: the first brings it up; it goes down when another is wanted, or with
// the program (see main.cpp). A machine has each bed once (ports, users, names of hosts): a lock is held from before it
// comes up until it is down, and whoever has it first removes what a killed program left. A bed that does not
// come up is a skip with the reason; one that is up and fails, or does not go down, is a failure.
//
//   class Slurm : public BedTest {
//    protected:
//     static void SetUpTestSuite() { bring_up("slurm"); }
//   };
class BedTest : public ::testing::Test {
 public:
  // Checks that nothing is left behind; false, with words on stderr, when something is.
  static bool bring_down();

 protected:
  static void bring_up(const std::string& name);
  // Hosts that a test has taken down.
  static void bring_up_again();
  void SetUp() override;  // skips the test when the bed cannot be had
  void TearDown() override;

  // Settings of a parallel block, from YAML; the test fails when they have problems.
  ParallelSettings settings(const std::string& block_yaml);
  // Results of `function` over `count` items, in index order.
  std::vector<std::string> run(const ParallelSettings& settings, const std::string& function,
                               std::uint64_t count, RunReport* report = nullptr,
                               std::function<void(std::uint64_t done)> on_result = {});

  // The `tutti` program, as a user on the login node runs it.
  CommandResult tutti(const std::vector<std::string>& words) const;
  static std::vector<std::string> tutti_argv(const std::vector<std::string>& words);
  // The words of `tutti map` over 0 .. count-1 with a flow map as parallel block.
  std::vector<std::string> map_words(const std::string& block, const std::filesystem::path& out,
                                     int count, const std::vector<std::string>& command,
                                     bool async) const;
  CommandResult map(const std::string& block, const std::filesystem::path& out, int count,
                    const std::vector<std::string>& command, bool async) const;
  // The same in the background; output goes to `out`.log.
  Process start_map(const std::string& block, const std::filesystem::path& out, int count,
                    const std::vector<std::string>& command, bool async) const;
  // What a local run of the command gives.
  std::string local_results(int count, const std::vector<std::string>& command);
  // Waits for the asynchronous run in `out`; its results, or what went wrong.
  std::string wait_for_results(const std::filesystem::path& out) const;
  // The end of a driver in the background. One that takes longer than any may is killed, and the test fails.
  static ExitStatus end_of(Process& driver, const std::string& what);
  // Items of the run in `out` that are done and ok.
  static std::uint64_t num_ok(const std::filesystem::path& out);
  // All logs of the workers in `out`.
  static std::string worker_logs(const std::filesystem::path& out);

  // Runs a shell line; its trimmed output.
  static std::string sh(const std::string& line);
  static bool eventually(const std::function<bool()>& condition, double limit_s = 120);
  // Processes with all of these words on their command line.
  static std::vector<pid_t> processes_with(const std::vector<std::string>& words);
  // The processes that run the items of the run in `out`.
  static std::vector<pid_t> worker_pids(const std::filesystem::path& out);

  static std::filesystem::path bed_;
  static std::string user_;                       // whom the scheduler lets submit; empty: us
  TempFolder folder_{"test", folder_of_tests()};  // in the bed: what works in it is of the bed
  std::atomic<int> next_run_{0};

 private:
  static std::filesystem::path folder_of_tests();
  static std::string name_;
  static std::string skip_reason_;
  static UniqueFd lock_;
  static std::map<std::string, std::string> env_before_;  // variables the bed has changed
};

}  // namespace tutti::parallel
