// Two users on one machine: what another one puts into a run's folder is never obeyed. A scheduler
// that accepts jobs and never starts them leaves the time to try; the job is then started by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using namespace trial;
using ::testing::HasSubstr;

const std::string kTutti = in_bin("tutti");

class OtherUser : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
    if (run_command({.argv = {"setpriv", "--version"}}).exit_code != 0)
      GTEST_SKIP() << "needs setpriv";
    ::umask(022);  // what the test itself writes is for others to read
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
    // A project folder of a group: all its members may write, and what they make is the group's.
    make_folders(project_);
    ASSERT_EQ(::chown(project_.c_str(), 0, kGroup), 0);
    ASSERT_EQ(::chmod(project_.c_str(), 02777), 0);
    if (as(me_, {"test", "-x", kTutti}).exit_code != 0)
      GTEST_SKIP() << "other users cannot run " << kTutti;
    make_folders(folder_.path() / "bin");
    tool("sbatch", "touch " + shell_quote((project_ / "submitted").string()) + "; echo 4711");
    tool("squeue", "echo '4711|PENDING|Resources|None'");
    for (const char* name : {"sacct", "scancel", "scontrol", "sinfo"}) tool(name, "exit 0");
    write_file_atomic(
        folder_.path() / "conf.yaml",
        "parallel:\n  env: slurm\n  n_workers: 1\n  options: {queue: debug, cores: 1, "
        "processes: 1, memory: 500MB, walltime: '00:10:00', death_timeout: 20}\n");
  }
  void TearDown() override {
    for (int i = 0; i < 3; ++i)
      for (const pid_t pid : all_pids())
        if (proc_text(pid, "status").find("Uid:\t" + std::to_string(me_)) != std::string::npos)
          ::kill(pid, SIGKILL);
  }

  void tool(const std::string& name, const std::string& does) const {
    write_file_atomic(folder_.path() / "bin" / name, "#!/bin/sh\n" + does + "\n", 0755);
  }
  Command command_as(int user, std::vector<std::string> words) const {
    std::vector<std::string> argv = {"setpriv",
                                     "--reuid=" + std::to_string(user),
                                     "--regid=" + std::to_string(kGroup),
                                     "--clear-groups",
                                     "env",
                                     "HOME=" + project_.string(),
                                     "PATH=" + (folder_.path() / "bin").string() + ":/usr/bin:/bin",
                                     "sh",
                                     "-c",
                                     "umask 002; exec \"$@\"",
                                     "sh"};
    argv.insert(argv.end(), words.begin(), words.end());
    return {.argv = argv, .cwd = project_, .timeout = std::chrono::seconds(60)};
  }
  CommandResult as(int user, std::vector<std::string> words) const {
    return run_command(command_as(user, std::move(words)));
  }

  // The driver; its job waits in the queue once this returns.
  Process submit() {
    std::vector<std::string> words = {
        kTutti,    "map", "--quiet",      "--config",   (folder_.path() / "conf.yaml").string(),
        "--items", "3",   "--output_dir", out_.string()};
    if (GetParam()) words.emplace_back("--async");
    words.insert(words.end(),
                 {"--", "touch " + shell_quote((project_ / "ran").string()) + "; echo {}"});
    Command command = command_as(me_, words);
    command.stdout_path = folder_.path() / "driver.log";
    Process driver = Process::start(command);
    EXPECT_TRUE(wait_until([&] { return fs::exists(project_ / "submitted"); }))
        << read_file(folder_.path() / "driver.log");
    return driver;
  }
  fs::path trusted() const {
    return out_ / ".tutti" / (GetParam() ? "async/job.json" : "connect.json");
  }
  std::string script() const {
    for (const auto& entry : fs::directory_iterator(out_ / "scripts")) return entry.path().string();
    return "";
  }
  // The job starts, as its owner; all that was said.
  std::string start_job() const {
    const auto result = as(me_, {"timeout", "25", "bash", script()});
    std::string said = result.out + result.err;
    for (const auto& entry : fs::directory_iterator(out_ / "logs")) said += read_file(entry.path());
    return said;
  }
  bool ran() const { return fs::exists(project_ / "ran"); }

  static constexpr int kGroup = 290000;
  const int me_ = 300000 + ::getpid() % 100000 * 2;  // numbers of nobody
  const int other_ = me_ + 1;
  TempFolder folder_{"users"};
  fs::path project_ = folder_.path() / "project";
  fs::path out_ = project_ / "out";
};

unsigned mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777U;
}

TEST_P(OtherUser, AnUntouchedRunDoesItsItemsAndItsFoldersAreItsOwn) {
  Process driver = submit();
  EXPECT_EQ(mode_of(out_ / ".tutti"), 0700U);
  EXPECT_EQ(mode_of(out_ / "scripts"), 0700U);
  EXPECT_EQ(mode_of(trusted()), 0600U);
  for (const char* part : {"", "logs", "journal"})
    EXPECT_EQ(mode_of(out_ / part) & 022U, 0U) << part;
  const std::string said = start_job();
  EXPECT_TRUE(ran()) << said;
  // Another user of the group sees how it goes and can change nothing.
  const auto status = as(other_, {kTutti, "status", out_.string()});
  EXPECT_EQ(status.exit_code, 4) << status.err;
  EXPECT_THAT(status.out, ::testing::Not(HasSubstr("died")));
  const std::string journals = (out_ / "journal").string() + "/*";
  EXPECT_NE(as(other_, {"sh", "-c", "echo x >>" + journals}).exit_code, 0);
  EXPECT_NE(as(other_, {"sh", "-c", "echo x >>" + (out_ / "results.jsonl").string()}).exit_code, 0);
  EXPECT_NE(as(other_, {"mv", (out_ / "logs").string(), (out_ / "gone").string()}).exit_code, 0);
}

TEST_P(OtherUser, NothingSecretIsInAScriptOrOnACommandLine) {
  if (GetParam()) GTEST_SKIP() << "nobody is talked to there, so there are no keys";
  Process driver = submit();
  const std::string key = read_file(out_ / ".tutti" / "keys" / "0");
  ASSERT_GE(key.size(), 40U);
  EXPECT_EQ(mode_of(out_ / ".tutti" / "keys" / "0"), 0600U);
  EXPECT_EQ(mode_of(out_ / ".tutti" / "keys"), 0700U);
  EXPECT_NE(as(other_, {"cat", (out_ / ".tutti" / "keys" / "0").string()}).exit_code, 0);
  EXPECT_THAT(read_file(script()), ::testing::Not(HasSubstr(key)));
  Process job = Process::start(command_as(me_, {"timeout", "25", "bash", script()}));
  EXPECT_TRUE(wait_until([&] {
    for (const pid_t pid : all_pids())
      EXPECT_THAT(proc_text(pid, "cmdline"), ::testing::Not(HasSubstr(key))) << pid;
    return ran();
  }));
}

TEST_P(OtherUser, FilesOfAnotherUserAreRefusedByTheWorker) {
  Process driver = submit();
  ASSERT_EQ(::chown(trusted().c_str(), static_cast<uid_t>(other_), kGroup), 0);
  ASSERT_EQ(::chmod(trusted().c_str(), 0644), 0);
  EXPECT_THAT(start_job(), HasSubstr("belongs to another user"));
  EXPECT_FALSE(ran());
}

// As it was: the group could write .tutti, and the attacker put their own file in its place.
TEST_P(OtherUser, AFolderThatWasSwappedWhileTheJobWaitedIsRefused) {
  Process driver = submit();
  ASSERT_EQ(::chmod((out_ / ".tutti").c_str(), 0777), 0);
  ASSERT_EQ(::chmod(trusted().parent_path().c_str(), 0777), 0);
  const std::string file = shell_quote(trusted().string());
  ASSERT_EQ(as(other_, {"sh", "-c", "rm -f " + file + "; echo '{}' >" + file}).exit_code, 0);
  EXPECT_THAT(start_job(), HasSubstr("is not to be trusted"));
  EXPECT_FALSE(ran());
}

TEST_P(OtherUser, FilesThatOthersMayWriteAreRefusedByTheWorker) {
  Process driver = submit();
  ASSERT_EQ(::chmod(trusted().c_str(), 0666), 0);
  EXPECT_THAT(start_job(), HasSubstr("others may write it (mode 0666)"));
  EXPECT_FALSE(ran());
}

TEST_P(OtherUser, AFolderMadeInAdvanceIsRefusedByTheDriver) {
  ASSERT_EQ(as(other_, {"mkdir", "-m", "777", out_.string()}).exit_code, 0);
  ASSERT_EQ(as(other_, {"mkdir", "-m", "777", (out_ / ".tutti").string()}).exit_code, 0);
  std::vector<std::string> words = {kTutti, "map", "--items", "3", "--output_dir", out_.string()};
  if (GetParam()) words.emplace_back("--async");
  words.insert(words.end(), {"--", "touch", (project_ / "ran").string()});
  const auto result = as(me_, words);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("belongs to another user"));
  EXPECT_FALSE(ran());
}

TEST_P(OtherUser, WhoseRunItIsIsToldToThoseWhoCannotSeeItWhole) {
  Process driver = submit();
  const std::string whose = "the run belongs to user " + std::to_string(me_);
  for (const char* verb : {"gather", "cancel", "wait"}) {
    const auto result = as(other_, {kTutti, verb, out_.string()});
    EXPECT_EQ(result.exit_code, 4) << verb << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(whose + ", and only its owner can " + verb));
  }
  const auto status = as(other_, {kTutti, "status", out_.string()});
  EXPECT_EQ(status.exit_code, 4);
  EXPECT_THAT(status.err, HasSubstr(whose));
  EXPECT_THAT(status.err, HasSubstr("cannot be seen"));
  EXPECT_EQ(as(other_, {kTutti, "status", "--quiet", out_.string()}).exit_code, 0);
  start_job();
  if (GetParam()) {
    EXPECT_EQ(as(me_, {kTutti, "wait", out_.string()}).exit_code, 0);
  } else {
    EXPECT_TRUE(driver.wait().ok());
  }
  const auto done = as(other_, {kTutti, "status", "--json", out_.string()});
  EXPECT_EQ(done.exit_code, 4);
  const Json json = parse_json(done.out, "status");
  EXPECT_EQ(json["state"], "done");
  EXPECT_EQ(json["ok"], 3);
  EXPECT_EQ(json["owner"], "user " + std::to_string(me_));
  // A folder that others may not enter at all is told apart from one without a run.
  ASSERT_EQ(::chmod(out_.c_str(), 0700), 0);
  const auto closed = as(other_, {kTutti, "status", out_.string()});
  EXPECT_EQ(closed.exit_code, 4) << closed.err;
  EXPECT_THAT(closed.err, HasSubstr(whose));
}

TEST_P(OtherUser, BehindALinkOfAnotherUserNothingIsMade) {
  const fs::path trap = project_ / "trap";
  ASSERT_EQ(as(other_, {"ln", "-s", trap.string(), out_.string()}).exit_code, 0);
  std::vector<std::string> words = {kTutti, "map", "--items", "3", "--output_dir", out_.string()};
  if (GetParam()) words.emplace_back("--async");
  words.insert(words.end(), {"--", "touch", (project_ / "ran").string()});
  const auto result = as(me_, words);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("symbolic link of another user"));
  EXPECT_FALSE(ran());
  EXPECT_FALSE(fs::exists(trap));
}

INSTANTIATE_TEST_SUITE_P(Runs, OtherUser, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Async" : "Driven"; });

}  // namespace
}  // namespace tutti::parallel
