// Statistics are the same bytes with any number of workers, also when workers are killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// Processes that a thread of `pid` started.
std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code gone;
  const fs::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (fs::directory_iterator it(tasks, gone), end; !gone && it != end; it.increment(gone)) {
    std::ifstream file(it->path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

// A process that reads utterances: some descendant that was started in worker mode.
std::vector<pid_t> workers_of(pid_t pid) {
  std::vector<pid_t> found;
  for (const pid_t child : children_of(pid)) {
    std::ifstream file("/proc/" + std::to_string(child) + "/cmdline");
    const std::string command((std::istreambuf_iterator<char>(file)), {});
    if (command.find("worker") != std::string::npos) found.push_back(child);
    for (const pid_t deeper : workers_of(child)) found.push_back(deeper);
  }
  return found;
}

class CollectStats : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& stage, const std::vector<std::string>& more) {
    std::vector<std::string> words = {in_bin("tutti"),
                                      "run",
                                      "--stages",
                                      stage,
                                      "--training_config",
                                      (folder_.path() / "conf/training.yaml").string(),
                                      "create_dataset.num_train=150",
                                      "create_dataset.num_valid=10",
                                      "create_dataset.num_test=2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void run(const std::string& stage, const std::vector<std::string>& more = {}) {
    const CommandResult result =
        run_command({.argv = command(stage, more), .timeout = std::chrono::minutes(3)});
    ASSERT_TRUE(result.ok()) << result.describe();
  }
  // Every statistics file but logs, by name.
  std::map<std::string, std::string> statistics(const std::string& stats) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path() / stats)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".npz") || name.ends_with("_shape"))
        files[fs::relative(entry.path(), folder_.path() / stats).string()] =
            read_file(entry.path());
    }
    return files;
  }

  TempFolder folder_;
};

TEST_F(CollectStats, KilledWorkersChangeNothing) {
  fs::copy(fs::path(in_source("recipes/digits/conf")), folder_.path() / "conf");
  run("create_dataset");
  run("train_tokenizer");
  run("collect_stats", {"parallel.n_workers=1", "stats_dir=" + (folder_.path() / "one").string()});
  const auto expected = statistics("one");
  ASSERT_GE(expected.size(), 2U);

  Process process = Process::start(
      {.argv = command("collect_stats", {"parallel.n_workers=3",
                                         "stats_dir=" + (folder_.path() / "three").string()}),
       .stdout_path = folder_.path() / "log"});
  int killed = 0;
  std::optional<ExitStatus> status;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!(status = process.wait_for(milliseconds(20))) &&
         std::chrono::steady_clock::now() < deadline) {
    if (killed == 2) continue;  // of a third in a row that never came up a run would complain
    for (const pid_t worker : workers_of(process.pid()))
      if (::kill(worker, SIGKILL) == 0) {
        ++killed;
        break;
      }
  }
  ASSERT_TRUE(status && status->ok()) << read_file(folder_.path() / "log");
  EXPECT_GE(killed, 1);
  EXPECT_EQ(statistics("three"), expected);
}

}  // namespace
}  // namespace tutti::systems
