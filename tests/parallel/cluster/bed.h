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

class BedTest : public ::testing::Test {
 protected:
  explicit BedTest(std::string name) : name_(std::move(name)) {}
  void SetUp() override;     // skips the test when the bed cannot be had
  void TearDown() override;  // and leaves nothing behind

  // Settings of a parallel block, from YAML; the test fails when they have problems.
  ParallelSettings settings(const std::string& block_yaml);
  // Results of `function` over `count` items, in index order.
  std::vector<std::string> run(const ParallelSettings& settings, const std::string& function,
                               std::uint64_t count, RunReport* report = nullptr,
                               std::function<void(std::uint64_t done)> on_result = {});
  // Runs a shell line; its trimmed output.
  std::string sh(const std::string& line);
  static bool eventually(const std::function<bool()>& condition, double limit_s = 60);

  const std::string name_;
  TempFolder folder_{"tutti-bed"};
  // Beside the test's own folder, which is closed to the users some daemons run as.
  std::filesystem::path bed_ = folder_.path().string() + "-" + name_;
  std::atomic<int> next_run_{0};
};

}  // namespace tutti::parallel
