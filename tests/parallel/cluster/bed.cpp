#include "tests/parallel/cluster/bed.h"

#include <cstdlib>

#include "tutti/config/load.h"
#include "tutti/core/text.h"

namespace tutti::parallel {

void BedTest::SetUp() {
  const auto up =
      run_command({.argv = {std::string(TUTTI_SOURCE_DIR) + "/tests/beds/" + name_ + "/up.sh"},
                   .env = {{"BED", bed_.string()}},
                   .timeout = std::chrono::seconds(240)});
  if (up.exit_code == 77) GTEST_SKIP() << trim(up.out);
  ASSERT_TRUE(up.ok()) << up.out << up.err;
  // The bed's commands find it by the variables of its env.sh.
  if (std::filesystem::exists(bed_ / "env.sh"))
    for (const std::string& line : split(read_file(bed_ / "env.sh"), '\n'))
      if (line.starts_with("export "))
        for (const std::string& word : split_words(line.substr(7)))
          ::setenv(word.substr(0, word.find('=')).c_str(), word.substr(word.find('=') + 1).c_str(),
                   1);
}

void BedTest::TearDown() {
  const auto down =
      run_command({.argv = {std::string(TUTTI_SOURCE_DIR) + "/tests/beds/" + name_ + "/down.sh"},
                   .env = {{"BED", bed_.string()}},
                   .timeout = std::chrono::seconds(120)});
  EXPECT_TRUE(down.ok()) << down.out << down.err;
}

ParallelSettings BedTest::settings(const std::string& block_yaml) {
  config::Problems problems;
  ParallelSettings out = parse_parallel(config::parse_yaml(block_yaml, "bed.yaml"), problems);
  EXPECT_TRUE(problems.empty()) << problems.describe();
  return out;
}

std::vector<std::string> BedTest::run(const ParallelSettings& settings, const std::string& function,
                                      std::uint64_t count, RunReport* report,
                                      std::function<void(std::uint64_t done)> on_result) {
  std::vector<std::string> results(count);
  const auto run_folder = folder_.path() / ("run-" + std::to_string(next_run_++));
  make_folders(run_folder);
  Client client(settings, {.run_folder = run_folder});
  JobSpec job;
  job.function = function;
  std::uint64_t done = 0;
  const RunReport got = client.run(job, {.indices = range(count)}, [&](const Outcome& outcome) {
    EXPECT_TRUE(results[outcome.index].empty()) << "item " << outcome.index << " came twice";
    results[outcome.index] = outcome.payload;
    if (on_result) on_result(++done);
  });
  if (report != nullptr) *report = got;
  return results;
}

std::string BedTest::sh(const std::string& line) {
  const auto result =
      run_command({.argv = {"bash", "-c", line}, .timeout = std::chrono::seconds(60)});
  return std::string(trim(result.out));
}

bool BedTest::eventually(const std::function<bool()>& condition, double limit_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // between two looks at the cluster
  }
  return true;
}

}  // namespace tutti::parallel
