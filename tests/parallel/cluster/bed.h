// A real scheduler for the length of a test: tests/beds/NAME/up.sh and down.sh.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
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

// All tests of a suite share one bed, brought up by the first and down after the last:
//
//   class Slurm : public BedTest {
//    protected:
//     static void SetUpTestSuite() { bring_up("slurm"); }
//     static void TearDownTestSuite() { bring_down(); }
//   };
class BedTest : public ::testing::Test {
 protected:
  static void bring_up(const std::string& name);
  static void bring_down();  // and leaves nothing behind
  void SetUp() override;     // skips the test when the bed cannot be had
  void TearDown() override;

  // Settings of a parallel block, from YAML; the test fails when they have problems.
  ParallelSettings settings(const std::string& block_yaml);
  // Results of `function` over `count` items, in index order.
  std::vector<std::string> run(const ParallelSettings& settings, const std::string& function,
                               std::uint64_t count, RunReport* report = nullptr,
                               std::function<void(std::uint64_t done)> on_result = {});

  // The `tutti` program, as a user on the login node runs it.
  CommandResult tutti(const std::vector<std::string>& words) const;
  // The words of `tutti map` over 0 .. count-1 with a flow map as parallel block.
  std::vector<std::string> map_words(const std::string& block, const std::filesystem::path& out,
                                     int count, const std::vector<std::string>& command,
                                     bool async) const;
  CommandResult map(const std::string& block, const std::filesystem::path& out, int count,
                    const std::vector<std::string>& command, bool async) const;
  // What a local run of the command gives.
  std::string local_results(int count, const std::vector<std::string>& command);
  // Waits for the asynchronous run in `out`; its results, or what went wrong.
  std::string wait_for_results(const std::filesystem::path& out) const;
  // `tutti map` of 1,000 items on the block, synchronous and asynchronous, against local.
  void expect_local_bytes_in_both_modes(const std::string& block);
  // Items without a strike, a failure or a second try in the logs of a run.
  static std::uint64_t num_ok(const std::filesystem::path& out);

  // Runs a shell line; its trimmed output.
  static std::string sh(const std::string& line);
  static bool eventually(const std::function<bool()>& condition, double limit_s = 60);
  // Processes that carry `word` on their command line.
  static int processes_with(const std::string& word);

  static std::filesystem::path bed_;
  static std::string user_;  // whom the scheduler lets submit; empty: us
  TempFolder folder_{"tutti-bed"};
  std::atomic<int> next_run_{0};

 private:
  static std::string name_;
  static std::string skip_reason_;
};

}  // namespace tutti::parallel
