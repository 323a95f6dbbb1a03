#include "tutti/parallel/run/backend_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/parallel/items.h"
#include "tutti/config/load.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/run/job_record.h"

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using trial::wait_until;

// A scheduler whose every command takes longer than anybody waits.
class Hanging final : public Backend {
 public:
  Hanging(CommandRunner& runner, std::vector<std::string>& log) : runner_(runner), log_(log) {}
  std::vector<JobStatus> submit(int) override {
    const auto result = runner_.run({.argv = {"sleep", "1000"}});
    throw SchedulerUnreachable(result.describe());
  }
  std::vector<JobStatus> poll() override { return {}; }
  bool cancel(const std::vector<std::string>& ids) noexcept override {
    log_.push_back(ids.empty() ? "cancel all" : "cancel " + ids.front());
    return true;
  }
  std::vector<ScriptPreview> scripts(int) const override { return {}; }

 private:
  CommandRunner& runner_;
  std::vector<std::string>& log_;
};

TEST(BackendThread, ACommandThatHangsNeitherBlocksTheCallerNorTheWayOut) {
  std::vector<std::string> log;
  Mailbox mailbox;
  BackendThread backend(
      [&](CommandRunner& runner) { return std::make_unique<Hanging>(runner, log); },
      CommandRunner::system(), mailbox, {});
  bool answered = false;
  backend.submit(1, {}, [&](const Submitted& answer) { answered = answer.unreachable; });
  ASSERT_TRUE(wait_until([&] { return backend.busy_s() > 0; }));
  backend.close();
  EXPECT_THAT(log, ElementsAre("cancel all"));
  mailbox.open();
  EXPECT_TRUE(answered) << "whoever asked hears that nobody answered";
}

// The last look is cut off by us, so it is no news about the scheduler.
TEST(BackendThread, AQueryThatIsEndedWithTheRunIsNoWarning) {
  const TempFolder folder;
  class Slurm final : public CommandRunner {
   public:
    CommandResult run(const Command& command) override {
      Command played = command;
      const bool query = command.argv.front() == "squeue";
      if (query) asked = true;
      played.argv = query ? std::vector<std::string>{"sleep", "1000"}
                          : std::vector<std::string>{"echo", "17"};
      return run_command(played);
    }
    std::atomic<bool> asked{false};
  } slurm;
  Mailbox mailbox;
  ParallelSettings settings;
  settings.env = "slurm";
  settings.options = config::parse_yaml("{cores: 1, memory: 1GB}", "test.yaml");
  WorkerLaunch launch;
  launch.command = {"worker"};
  launch.run_folder = folder.path();
  BackendThread backend(
      [&](CommandRunner& runner) { return make_backend(settings, launch, runner); }, slurm, mailbox,
      {});
  backend.submit(1, {}, [](const Submitted&) {});
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(wait_until([&] {
    backend.look([](const std::vector<JobStatus>&) {});
    mailbox.open();
    return slurm.asked.load();
  }));
  backend.close();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::Not(::testing::HasSubstr("cannot ask")));
}

// As a driver that was killed: job 17 is noted, and nobody has cancelled it.
void leave_a_job_behind(const std::filesystem::path& folder) {
  make_folders(folder / ".tutti");
  std::filesystem::permissions(folder / ".tutti", std::filesystem::perms::owner_all);
  JobRecord record{.life = "0badc0de", .job_ids = {"17"}};
  record.settings.env = "slurm";
  record.settings.options = config::parse_yaml("{cores: 1, memory: 1GB}", "test.yaml");
  record.write(folder);
}

// By the scheduler that has them, whichever the next driver uses.
TEST(BackendThread, WhatAKilledDriverLeftIsEndedFirst) {
  const TempFolder folder;
  leave_a_job_behind(folder.path());
  class Slurm final : public CommandRunner {
   public:
    CommandResult run(const Command& command) override {
      log.push_back(command.describe());
      CommandResult result;
      result.exit_code = 0;
      if (command.argv.front() == "squeue") result.out = "17|/somewhere/job.sh\n";
      return result;
    }
    std::vector<std::string> log;  // side thread
  } slurm;
  std::vector<std::string> log;
  Mailbox mailbox;
  {
    BackendThread backend(
        [&](CommandRunner& runner) { return std::make_unique<Hanging>(runner, log); }, slurm,
        mailbox, {.run_folder = folder.path(), .life = "600d", .keep_record = true});
    EXPECT_TRUE(wait_until([&] { return JobRecord::read(folder.path()).life.empty(); }));
  }
  EXPECT_THAT(slurm.log, ::testing::Contains(::testing::HasSubstr("scancel")));
  EXPECT_THAT(log, ElementsAre("cancel all"));
}

// A controller that is down at the beginning is back at the end, or later.
TEST(BackendThread, WhatAKilledDriverLeftIsTriedAgainAtTheEndAndNotForgotten) {
  for (const bool back_at_the_end : {true, false}) {
    const TempFolder folder;
    leave_a_job_behind(folder.path());
    class Slurm final : public CommandRunner {
     public:
      CommandResult run(const Command& command) override {
        const bool is_down = down;
        CommandResult result;
        result.exit_code = is_down ? 1 : 0;
        result.err = is_down ? "Unable to contact slurm controller" : "";
        // It may be back for the question that follows a cancel which failed.
        if (command.argv.front() == "squeue" && !is_down)
          result.out =
              command.argv.back() == "%i|%o" ? "17|/somewhere/job.sh\n" : "17|PENDING||Resources\n";
        if (command.argv.front() == "scancel") ++(is_down ? failed : done);
        return result;
      }
      std::atomic<bool> down{true};
      std::atomic<int> failed{0};
      std::atomic<int> done{0};
    } slurm;
    std::vector<std::string> log;
    Mailbox mailbox;
    {
      BackendThread backend(
          [&](CommandRunner& runner) { return std::make_unique<Hanging>(runner, log); }, slurm,
          mailbox, {.run_folder = folder.path(), .life = "600d", .keep_record = true});
      EXPECT_TRUE(wait_until([&] { return slurm.failed > 0; }));
      slurm.down = !back_at_the_end;
    }
    EXPECT_EQ(slurm.done > 0, back_at_the_end);
    const JobRecord left = JobRecord::read(folder.path());
    EXPECT_EQ(left.life, back_at_the_end ? "" : "0badc0de");
    EXPECT_EQ(left.job_ids.size(), back_at_the_end ? 0U : 1U);
  }
}

}  // namespace
}  // namespace tutti::parallel
