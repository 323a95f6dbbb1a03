// After a signal: what is asked of Slurm, and what the process exits with.
#include "tutti/trainer/preemption.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "tutti/trainer/loop.h"

namespace tutti::trainer {
namespace {

class RecordingRunner final : public CommandRunner {
 public:
  CommandResult run(const Command& command) override {
    commands.push_back(command.argv);
    const bool asks = command.argv[1] == "show";
    return {.exit_code = exit_code, .out = asks ? job : "", .command = command.describe()};
  }
  std::string job =
      "JobId=42 JobState=RUNNING PreemptEligibleTime=2026-01-01T00:00:00 "
      "PreemptTime=None SuspendTime=None";
  std::vector<std::vector<std::string>> commands;
  int exit_code = 0;
};

class Preempted : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"})
      ::unsetenv(name);
  }
  RecordingRunner runner_;
  FitResult result_{.end = FitEnd::kPreempted, .signal = SIGUSR1};
  using Argv = std::vector<std::string>;
};

TEST_F(Preempted, RequeuesTheJobOnRankZeroOnly) {
  ::setenv("SLURM_JOB_ID", "42", 1);
  EXPECT_EQ(conclude(result_, 1, runner_), ExitCode::kStoppedResumable);
  EXPECT_TRUE(runner_.commands.empty());
  EXPECT_EQ(conclude(result_, 0, runner_), ExitCode::kStoppedResumable);
  ASSERT_EQ(runner_.commands.size(), 1u);
  EXPECT_EQ(runner_.commands[0], (Argv{"scontrol", "requeue", "42"}));
}

TEST_F(Preempted, RequeuesAnArrayTaskByItsOwnId) {
  ::setenv("SLURM_JOB_ID", "50", 1);
  ::setenv("SLURM_ARRAY_JOB_ID", "42", 1);
  ::setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  EXPECT_TRUE(requeue_if_wanted(SIGUSR1, SIGUSR1, runner_));
  EXPECT_EQ(runner_.commands[0][2], "42_3");
  runner_.exit_code = 1;
  EXPECT_FALSE(requeue_if_wanted(SIGUSR1, SIGUSR1, runner_));
}

TEST_F(Preempted, ScancelEndsTheJob) {
  ::setenv("SLURM_JOB_ID", "42", 1);
  result_.signal = SIGTERM;
  EXPECT_EQ(conclude(result_, 0, runner_), ExitCode::kStoppedResumable);
  for (const Argv& command : runner_.commands) EXPECT_NE(command[1], "requeue");
}

TEST_F(Preempted, ATermThatTakesTheNodesAwayIsFollowedByARequeue) {
  ::setenv("SLURM_JOB_ID", "42", 1);
  runner_.job = "JobId=42 PreemptTime=2026-11-16T02:00:00 SuspendTime=None";
  EXPECT_TRUE(requeue_if_wanted(SIGTERM, SIGUSR1, runner_));
  EXPECT_EQ(runner_.commands.back(), (Argv{"scontrol", "requeue", "42"}));
}

TEST_F(Preempted, TheRequeueSignalIsTheConfigs) {
  ::setenv("SLURM_JOB_ID", "42", 1);
  EXPECT_TRUE(requeue_if_wanted(SIGUSR2, SIGUSR2, runner_));
  EXPECT_FALSE(requeue_if_wanted(SIGUSR1, SIGUSR2, runner_));
  EXPECT_FALSE(requeue_if_wanted(SIGUSR1, 0, runner_));
  EXPECT_EQ(signal_number("SIGUSR2"), SIGUSR2);
  EXPECT_EQ(signal_number("HUP"), SIGHUP);
}

TEST_F(Preempted, OutsideSlurmNothingIsRun) {
  EXPECT_EQ(conclude(result_, 0, runner_), ExitCode::kStoppedResumable);
  EXPECT_TRUE(runner_.commands.empty());
  EXPECT_EQ(conclude({.end = FitEnd::kInterrupted}, 0, runner_), ExitCode::kInterrupted);
  EXPECT_EQ(conclude({.end = FitEnd::kTimeUp}, 0, runner_), ExitCode::kDone);
}

TEST(StopSignals, RemembersTheFirstAndRestoresHandlers) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGTERM, nullptr, &before);
  {
    StopSignals signals;
    EXPECT_EQ(signals.received(), 0);
    ::raise(SIGUSR1);
    ::raise(SIGTERM);
    EXPECT_EQ(signals.received(), SIGUSR1);
  }
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(StopSignals, CtrlCAndALostTerminalStopTheRunUnlessTheyWereIgnoredFromTheStart) {
  for (const int signal : {SIGHUP, SIGINT}) {
    const auto before = std::signal(signal, SIG_DFL);  // the test itself may run in a background
    {
      StopSignals signals;
      ::raise(signal);
      EXPECT_EQ(signals.received(), signal);
    }
    std::signal(signal, SIG_IGN);
    {
      StopSignals signals;
      ::raise(signal);
      EXPECT_EQ(signals.received(), 0);
    }
    EXPECT_EQ(std::signal(signal, before), SIG_IGN);
  }
}

TEST(StopSignals, BeforeTheLoopASignalIsAnsweredByAThread) {
  std::atomic<int> left{0};
  StopSignals signals;
  signals.while_starting([&](int signal) { left = signal; });
  ::raise(SIGTERM);
  while (left == 0) std::this_thread::yield();
  EXPECT_EQ(left, SIGTERM);
}

}  // namespace
}  // namespace tutti::trainer
