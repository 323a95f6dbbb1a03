// on_error: stop, as a user sees it: the run ends, what is finished is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;
using trial::wait_until;

// No thread of it has anything to do.
bool sleeps(pid_t pid) {
  std::error_code gone;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    const std::string stat =
        proc_text(pid, ("task/" + task.path().filename().string() + "/stat").c_str());
    if (stat.find(") S ") == std::string::npos) return false;
  }
  return true;
}

class StopOnError : public ::testing::TestWithParam<bool> {
 protected:
  // Each tells who runs it and ends when `goN` is there; item 0 fails.
  void write_items() const {
    const std::string at = shell_quote(folder_.path().string());
    write_file_atomic(folder_.path() / "item.sh",
                      "echo $$ $PPID >" + at + "/new$1; mv " + at + "/new$1 " + at +
                          "/who$1\nuntil [ -e " + at +
                          "/go$1 ]; do sleep 0.02; done\n[ $1 != 0 ] || exit 3\n"
                          "echo result of $1\n");
  }
  bool has_begun(const std::string& item) const {
    return wait_until([&] { return std::filesystem::exists(folder_.path() / ("who" + item)); });
  }
  // Until its process is gone and its worker waits again.
  bool let_end(const std::string& item) const {
    write_file_atomic(folder_.path() / ("go" + item), "");
    const auto pids = split_words(read_file(folder_.path() / ("who" + item)));
    return wait_until([&] {
      return !std::filesystem::exists("/proc/" + pids.at(0)) && sleeps(std::stoi(pids.at(1)));
    });
  }
  TempFolder folder_{"stop"};
};

TEST_P(StopOnError, WhatWasFinishedWhenAnItemFailedIsKept) {
  write_items();
  const bool in_folder = GetParam();
  const auto out = folder_.path() / "out";
  Command command{.argv = {in_bin("tutti"), "map", "-j", "2", "--items", "2"},
                  .stdout_path = folder_.path() / "stdout",
                  .stderr_path = folder_.path() / "stderr"};
  if (in_folder) command.argv.insert(command.argv.end(), {"--output_dir", out.string()});
  command.argv.insert(command.argv.end(),
                      {"--", "sh", (folder_.path() / "item.sh").string(), "{}"});
  Process driver = Process::start(command);
  ASSERT_TRUE(has_begun("0") && has_begun("1"));
  // The driver hears of both only when both are over.
  ::kill(driver.pid(), SIGSTOP);
  ASSERT_TRUE(let_end("0"));
  ASSERT_TRUE(let_end("1"));
  ::kill(driver.pid(), SIGCONT);
  EXPECT_EQ(driver.wait().exit_code, 7);
  if (in_folder) {
    EXPECT_EQ(run_command({.argv = {in_bin("tutti"), "gather", out.string()}}).exit_code, 7);
  }
  EXPECT_THAT(read_file(in_folder ? out / "results.jsonl" : folder_.path() / "stdout"),
              HasSubstr("result of 1"));
}

INSTANTIATE_TEST_SUITE_P(Runs, StopOnError, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "InAFolder" : "ToStdout"; });

TEST(StopOnErrorOnStdout, SaysWhatHasNoOutput) {
  const auto map =
      run_command({.argv = {in_bin("tutti"), "map", "-j", "1", ":::", "a", "b", "c", "d", "--",
                            "case {} in a) echo A;; b) exit 3;; *) sleep 3600;; esac"},
                   .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(map.exit_code, 7) << map.err;
  EXPECT_EQ(map.out, "A\n");
  EXPECT_THAT(map.err, HasSubstr("not done, and so without output: {index} 2-3"));
}

}  // namespace
}  // namespace tutti::parallel
