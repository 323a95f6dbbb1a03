#include "tutti/core/subprocess.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

static std::atomic<int> num_polls{0};  // calls of poll(2) by this program

extern "C" int poll(pollfd* fds, nfds_t count, int limit_ms) {
  ++num_polls;
  const timespec limit{limit_ms / 1000, limit_ms % 1000 * 1000000L};
  return ::ppoll(fds, count, limit_ms < 0 ? nullptr : &limit, nullptr);
}

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// Polls `condition` until it holds; false after ten seconds.
template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

// A zombie still answers kill(pid, 0); /proc tells the truth.
bool is_running(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const auto close = text.rfind(')');
  return close != std::string::npos && text.size() > close + 2 && text[close + 2] != 'Z';
}

TEST(RunCommand, CollectsOutputAndExitCode) {
  const auto result =
      run_command({.argv = {"sh", "-c", "cat; echo oops >&2; exit 3"}, .stdin_text = "hello"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "hello");
  EXPECT_EQ(result.err, "oops\n");
  EXPECT_THAT(result.describe(), HasSubstr("failed with exit code 3: oops"));
}

TEST(RunCommand, MissingProgramIsReportedNotThrown) {
  const auto result = run_command({.argv = {"tutti-no-such-program"}});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.err, HasSubstr("cannot start tutti-no-such-program: No such file"));
}

TEST(RunCommand, TimeoutKillsTheWholeGroup) {
  TempFolder folder;
  const auto pid_file = folder.path() / "pid";
  const auto result =
      run_command({.argv = {"sh", "-c", "sleep 1000 & echo $! > \"$0\"; wait", pid_file.string()},
                   .timeout = 500ms});
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.ok());
  const pid_t grandchild = std::stoi(read_file(pid_file));
  EXPECT_TRUE(eventually([&] { return !is_running(grandchild); }));
}

TEST(RunCommand, AnotherThreadCanEndIt) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd stop(fds[0]);
  UniqueFd tell(fds[1]);
  std::thread other([&] { tell.reset(); });
  const auto result = run_command({.argv = {"sleep", "1000"}, .stop_fd = stop.get()});
  other.join();
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.ok());
}

TEST(RunCommand, CaptureIsCappedAndTheChildStillFinishes) {
  const auto result =
      run_command({.argv = {"sh", "-c", "head -c 3000000 /dev/zero"}, .capture_limit = 1000});
  EXPECT_TRUE(result.ok());
  EXPECT_TRUE(result.truncated);
  EXPECT_EQ(result.out.size(), 1000U);
}

TEST(RunCommand, LargeInputAndOutputDoNotDeadlock) {
  const std::string input(5 << 20, 'x');
  const auto result =
      run_command({.argv = {"cat"}, .stdin_text = input, .capture_limit = input.size()});
  EXPECT_EQ(result.out, input);
}

TEST(RunCommand, ChildThatIgnoresItsInputDoesNotKillUs) {
  const auto result = run_command({.argv = {"true"}, .stdin_text = std::string(1 << 20, 'x')});
  EXPECT_TRUE(result.ok());
}

TEST(RunCommand, TheChildReadsAFileOfOursAndWeSeeHowFarItIs) {
  const TempFolder folder;
  write_file_atomic(folder.path() / "a", "first\nsecond\n");
  const UniqueFd file(::open((folder.path() / "a").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(run_command({.argv = {"cat"}, .stdin_fd = file.get()}).out, "first\nsecond\n");
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_CUR), 13);
}

TEST(RunCommand, WhatIsWrittenToStderrIsToldAsItComes) {
  std::string told;
  const auto result = run_command({.argv = {"sh", "-c", "echo one >&2; echo two; echo three >&2"},
                                   .on_stderr = [&](std::string_view text) { told += text; }});
  EXPECT_EQ(told, "one\nthree\n");
  EXPECT_EQ(result.err, told);
}

TEST(RunCommand, LeaksNoDescriptors) {
  const UniqueFd leaky(::open("/dev/null", O_RDONLY));  // without O_CLOEXEC on purpose
  const auto result = run_command({.argv = {"sh", "-c", "ls /proc/self/fd | wc -l"}});
  EXPECT_EQ(std::stoi(result.out), 4) << "0, 1, 2 and the folder ls reads";
}

// With a look every 20 ms most commands would seem to take that long.
TEST(RunCommand, TheEndOfACommandIsWaitedForAndNotLookedForAgainAndAgain) {
  if (!UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0U))))
    GTEST_SKIP() << "a kernel before 5.3";
  num_polls = 0;
  const auto result = run_command({.argv = {"sh", "-c", "exec >&- 2>&-; sleep 0.5"}});
  EXPECT_TRUE(result.ok());
  EXPECT_GT(num_polls.load(), 0) << "it waits in another way";
  EXPECT_LE(num_polls.load(), 6);
}

TEST(RunCommand, EnvironmentIsAddedAndRemoved) {
  ::setenv("TUTTI_TEST_GONE", "1", 1);
  const auto result = run_command({.argv = {"sh", "-c", "echo $TUTTI_TEST_NEW-$TUTTI_TEST_GONE"},
                                   .env = {{"TUTTI_TEST_NEW", "a b"}},
                                   .unset_env = {"TUTTI_TEST_GONE"}});
  EXPECT_EQ(result.out, "a b-\n");
}

TEST(Process, TerminateEscalatesToKill) {
  TempFolder folder;
  const auto ready = folder.path() / "ready";
  Process process =
      Process::start({.argv = {"sh", "-c", "trap '' TERM; : > \"$0\"; while :; do sleep 1; done",
                               ready.string()}});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(ready); }));
  const ExitStatus status = process.terminate(100ms);
  EXPECT_EQ(status.signal, SIGKILL);
  EXPECT_EQ(status.describe(), "killed by SIGKILL (signal 9)");
}

TEST(Process, OutputIsAppendedToItsLog) {
  TempFolder folder;
  const auto log = folder.path() / "logs" / "worker-0.log";
  for (const char* word : {"one", "two"}) {
    Process process = Process::start(
        {.argv = {"sh", "-c", std::string("echo ") + word + " >&2"}, .stdout_path = log});
    EXPECT_TRUE(process.wait().ok());
  }
  EXPECT_EQ(read_file(log), "one\ntwo\n");
}

TEST(Process, StartOfAMissingProgramThrows) {
  try {
    Process::start({.argv = {"/no/such/program"}});
    FAIL();
  } catch (const IoError& e) {
    EXPECT_THAT(e.what(), HasSubstr("cannot start /no/such/program: No such file or directory"));
  }
}

TEST(Process, DiesWhenItsParentIsKilled) {
  TempFolder folder;
  const auto pid_file = folder.path() / "pid";
  const pid_t parent = ::fork();
  if (parent == 0) {
    Process child = Process::start({.argv = {"sleep", "1000"}});
    std::ofstream(pid_file) << child.pid() << std::endl;
    ::pause();
  }
  ASSERT_TRUE(eventually([&] {
    std::error_code ignored;
    return std::filesystem::file_size(pid_file, ignored) > 0 && !ignored;
  }));
  const pid_t child = std::stoi(read_file(pid_file));
  EXPECT_TRUE(is_running(child));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(eventually([&] { return !is_running(child); }));
}

TEST(Process, DestructorLeavesNothingRunning) {
  pid_t pid = 0;
  {
    Process process = Process::start({.argv = {"sleep", "1000"}});
    pid = process.pid();
    Process moved = std::move(process);
    EXPECT_EQ(moved.pid(), pid);
    EXPECT_TRUE(is_running(pid));
  }
  EXPECT_FALSE(is_running(pid));
}

// Whoever watches over children must know of each before its program can have children of its own.
TEST(Process, AChildAnnouncesItselfBeforeItRuns) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  // A program that cannot be started announces itself, too: so it happens before the start.
  EXPECT_THROW(Process::start({.argv = {"/no/such/program"}, .announce_fd = write_end.get()}),
               IoError);
  pid_t first = 0, second = 0;
  ASSERT_EQ(::read(read_end.get(), &first, sizeof first), ssize_t{sizeof first});
  EXPECT_GT(first, 1);
  Process child = Process::start({.argv = {"sleep", "1000"}, .announce_fd = write_end.get()});
  ASSERT_EQ(::read(read_end.get(), &second, sizeof second), ssize_t{sizeof second});
  EXPECT_EQ(second, child.pid());
  // The program itself does not hold the pipe.
  write_end.reset();
  EXPECT_EQ(::read(read_end.get(), &first, sizeof first), 0);
}

}  // namespace
}  // namespace tutti
