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
    return {.exit_code = exit_code, .command = command.describe()};
  }
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
  FitResult result_{.end = FitEnd::kPreempted};
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
  EXPECT_TRUE(requeue_under_slurm(runner_));
  EXPECT_EQ(runner_.commands[0][2], "42_3");
  runner_.exit_code = 1;
  EXPECT_FALSE(requeue_under_slurm(runner_));
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

}  // namespace
}  // namespace tutti::trainer
