#include "tests/parallel/cluster/bed.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tutti/config/load.h"
#include "tutti/core/text.h"
#include "tutti/parallel/run_folder.h"

namespace tutti::parallel {

std::filesystem::path BedTest::bed_;
std::string BedTest::user_;
std::string BedTest::name_;
std::string BedTest::skip_reason_;

namespace {

const std::string kProgram = TUTTI_BIN_DIR "/tutti";

std::string bed_script(const std::string& name, const char* script) {
  return std::string(TUTTI_SOURCE_DIR) + "/tests/beds/" + name + "/" + script;
}

}  // namespace

void BedTest::bring_up(const std::string& name) {
  name_ = name;
  skip_reason_.clear();
  // Not a TempFolder: those are closed to the users some daemons run as.
  bed_ = std::filesystem::temp_directory_path() /
         ("tutti-bed-" + name + "-" + std::to_string(::getpid()));
  const auto up = run_command({.argv = {bed_script(name, "up.sh")},
                               .env = {{"BED", bed_.string()}, {"PROGRAM", kProgram}},
                               .timeout = std::chrono::seconds(1200)});
  if (up.exit_code == 77) {
    skip_reason_ = trim(up.out);
    return;
  }
  ASSERT_TRUE(up.ok()) << up.out << up.err;
  user_ = std::filesystem::exists(bed_ / "user") ? std::string(trim(read_file(bed_ / "user"))) : "";
  // The bed's commands find it by the variables of its env.sh.
  if (std::filesystem::exists(bed_ / "env.sh"))
    for (const std::string& line : split(read_file(bed_ / "env.sh"), '\n'))
      if (line.starts_with("export "))
        for (const std::string& word : split_words(line.substr(7)))
          ::setenv(word.substr(0, word.find('=')).c_str(), word.substr(word.find('=') + 1).c_str(),
                   1);
}

void BedTest::bring_down() {
  const auto down = run_command({.argv = {bed_script(name_, "down.sh")},
                                 .env = {{"BED", bed_.string()}},
                                 .timeout = std::chrono::seconds(120)});
  EXPECT_TRUE(down.ok()) << down.out << down.err;
  EXPECT_FALSE(std::filesystem::exists(bed_));
}

void BedTest::SetUp() {
  if (!skip_reason_.empty()) GTEST_SKIP() << skip_reason_;
  if (!user_.empty())
    sh("chown " + user_ + " " + folder_.path().string() + "; chmod 755 " + folder_.path().string());
}

// Workers of a test that failed must not disturb the next.
void BedTest::TearDown() {
  if (!HasFailure()) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    if (std::filesystem::exists(entry.path() / ".tutti"))
      tutti({"cancel", "--now", entry.path().string()});
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

CommandResult BedTest::tutti(const std::vector<std::string>& words) const {
  std::vector<std::string> argv;
  if (!user_.empty()) argv = {(bed_ / "as-user").string()};
  argv.push_back(kProgram);
  argv.insert(argv.end(), words.begin(), words.end());
  return run_command({.argv = argv, .cwd = folder_.path(), .timeout = std::chrono::seconds(120)});
}

std::vector<std::string> BedTest::map_words(const std::string& block,
                                            const std::filesystem::path& out, int count,
                                            const std::vector<std::string>& command,
                                            bool async) const {
  const auto config = out.string() + ".yaml";
  write_file_atomic(config, "parallel: " + block + "\n");
  std::vector<std::string> words = {
      "map",          "--config",   config,   "--items", std::to_string(count),
      "--output_dir", out.string(), "--quiet"};
  if (async) words.emplace_back("--async");
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

CommandResult BedTest::map(const std::string& block, const std::filesystem::path& out, int count,
                           const std::vector<std::string>& command, bool async) const {
  return tutti(map_words(block, out, count, command, async));
}

std::string BedTest::local_results(int count, const std::vector<std::string>& command) {
  const auto out = folder_.path() / ("local-" + std::to_string(next_run_++));
  const auto run = map("{env: local, n_workers: 4}", out, count, command, false);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return read_file(out / "results.jsonl");
}

std::string BedTest::wait_for_results(const std::filesystem::path& out) const {
  const auto waited = tutti({"wait", out.string()});
  if (waited.exit_code != 0)
    return "exit code " + std::to_string(waited.exit_code) + ": " + waited.out + waited.err +
           tutti({"status", out.string()}).out;
  return read_file(out / "results.jsonl");
}

void BedTest::expect_local_bytes_in_both_modes(const std::string& block) {
  const std::vector<std::string> command = {"printf", "item %s", "{}"};
  const std::string expected = local_results(1000, command);
  const auto sync = folder_.path() / "sync";
  const auto run = map(block, sync, 1000, command, false);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(read_file(sync / "results.jsonl"), expected);
  const auto async = folder_.path() / "async";
  const auto submitted = map(block, async, 1000, command, true);
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  EXPECT_EQ(wait_for_results(async), expected);
  EXPECT_TRUE(eventually([&] { return processes_with("--run " + folder_.path().string()) == 0; }))
      << "workers were left running";
}

std::uint64_t BedTest::num_ok(const std::filesystem::path& out) {
  std::error_code none;
  return std::filesystem::exists(out / "manifest.json", none) ? count_items(out).ok : 0;
}

int BedTest::processes_with(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "cmdline");
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::replace(text.begin(), text.end(), '\0', ' ');
    if (text.find(word) != std::string::npos) ++count;
  }
  return count;
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
