// `tutti map` on a scheduler that hangs, lies, forgets and has broken nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/parallel/fake_slurm.h"
#include "tests/places.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using trial::wait_until;

TEST_F(Scheduler, ACommandThatHangsCostsNothingButNewWorkers) {
  Process driver = start(command(100, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(wait_until([&] { return num_ok() > 5; })) << story();
  behave("hang");
  ASSERT_TRUE(happens("hangs"));
  const auto ended = driver.wait_for(std::chrono::seconds(50));
  ASSERT_TRUE(ended) << "waits for squeue\n" << story();
  EXPECT_TRUE(ended->ok()) << story();
  EXPECT_EQ(num_ok(), 100U);
  EXPECT_THAT(story(), Not(HasSubstr("no word from the driver")));
}

TEST_F(Scheduler, SigtermIsHeededWhileACommandHangs) {
  Process driver = start(command(100000, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(wait_until([&] { return num_ok() > 5; })) << story();
  behave("hang");
  ASSERT_TRUE(happens("hangs"));
  ::kill(driver.pid(), SIGTERM);
  const auto ended = driver.wait_for(std::chrono::seconds(40));
  ASSERT_TRUE(ended) << "waits for squeue\n" << story();
  EXPECT_EQ(ended->exit_code, 85) << story();
}

// Who talks lives, whatever the scheduler says.
TEST_F(Scheduler, AnswersThatAreWrongOrNoneAtAllDoNotEndWorkersThatTalk) {
  for (const char* how : {"lie", "garbage"}) {
    fs::remove_all(out_);
    fs::remove_all(state_);
    fs::create_directories(state_);
    // Both workers have an item, and no item ends before the scheduler was asked.
    Process driver = start(command(200, 2,
                                   ": >\"$D\"/busy.$SLURM_ARRAY_TASK_ID; until [ -e \"$D\"/seen ]; "
                                   "do sleep 0.05; done; sleep 0.05; echo {}"));
    ASSERT_TRUE(happens("busy.0") && happens("busy.1")) << story();
    behave(how);
    ASSERT_TRUE(happens("seen"));
    EXPECT_TRUE(driver.wait().ok()) << story();
    EXPECT_EQ(num_ok(), 200U);
    EXPECT_EQ(num_submissions(), 1) << how << ": workers were replaced\n" << story();
    behave_again(how);
  }
}

TEST_F(Scheduler, JobsOfAKilledDriverNeverJoinTheNext) {
  const std::string mark =
      "echo {} >>" + shell_quote((folder_.path() / "marks").string()) + "; echo {}";
  behave("pending");
  Process first = start(command(20, 3, mark));
  ASSERT_TRUE(happens("101_2.pending")) << story();
  ASSERT_TRUE(wait_until([&] { return fs::exists(out_ / ".tutti" / "jobs.json"); }));
  ::kill(first.pid(), SIGKILL);
  first.wait();
  behave_again("pending");
  const auto second = run(command(20, 2, mark));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(num_ok(), 20U);
  for (int task = 0; task < 3; ++task)
    EXPECT_TRUE(fs::exists(state_ / ("101_" + std::to_string(task) + ".cancelled"))) << second.err;
  const auto marks = split_words(read_file(folder_.path() / "marks"));
  EXPECT_EQ(marks.size(), 20U) << "an item ran twice";
  EXPECT_FALSE(fs::exists(out_ / ".tutti" / "jobs.json"));
}

TEST_F(Scheduler, CancelTakesTheJobsOfAKilledDriverOutOfTheQueue) {
  behave("pending");
  Process driver = start(command(20, 2, "echo {}"));
  ASSERT_TRUE(happens("101_1.pending")) << story();
  ASSERT_TRUE(wait_until([&] {  // both are noted
    const auto noted = out_ / ".tutti" / "jobs.json";
    return fs::exists(noted) && read_file(noted).find("101_1") != std::string::npos;
  }));
  ::kill(driver.pid(), SIGKILL);
  driver.wait();
  behave("hang");
  behave("hang_scancel");
  Command impatient = about_run({"cancel"});
  impatient.env["TUTTI_SCHEDULER_PATIENCE"] = "1";
  const auto silence = run(impatient);
  EXPECT_EQ(silence.exit_code, 6) << silence.out << silence.err;
  EXPECT_THAT(silence.err, AllOf(HasSubstr("jobs may still be in the queue: 101_0 101_1"),
                                 HasSubstr("give the same command again")));
  behave_again("hang");
  behave_again("hang_scancel");
  const auto cancel = run(about_run({"cancel"}));
  EXPECT_EQ(cancel.exit_code, 0) << cancel.err;
  EXPECT_THAT(cancel.out, HasSubstr("its driver is gone (died); 2 jobs taken out of the queue"));
  EXPECT_TRUE(fs::exists(state_ / "101_0.cancelled") && fs::exists(state_ / "101_1.cancelled"));
  EXPECT_THAT(run(about_run({"cancel"})).out, HasSubstr("nothing runs there (died)"));
}

// The driver leaves within seconds; that its jobs are gone nobody has said.
TEST_F(Scheduler, CancelDoesNotSayStoppedWhileTheSchedulerHasNotTakenTheJobsOut) {
  behave("pending");
  Process driver = start(command(20, 2, "echo {}"));
  ASSERT_TRUE(wait_until([&] {
    return run(about_run({"status"})).out.find("2 jobs wait") != std::string::npos;
  })) << story();
  behave("hang");
  behave("hang_scancel");
  Command impatient = about_run({"cancel"});
  impatient.env["TUTTI_SCHEDULER_PATIENCE"] = "1";
  const auto silence = run(impatient);
  EXPECT_EQ(silence.exit_code, 6) << silence.out << silence.err;
  EXPECT_THAT(silence.out, Not(HasSubstr("stopped")));
  EXPECT_THAT(silence.err, HasSubstr("jobs may still be in the queue: 101_0 101_1"));
  EXPECT_EQ(driver.wait().exit_code, 85) << story();
  behave_again("hang");
  behave_again("hang_scancel");
  EXPECT_EQ(run(about_run({"cancel"})).exit_code, 0);
  EXPECT_TRUE(fs::exists(state_ / "101_0.cancelled") && fs::exists(state_ / "101_1.cancelled"));
}

TEST_F(Scheduler, AWorkerOfAnotherDriversLifeIsTurnedAway) {
  Process driver = start(command(100000, 1, "sleep 0.05; echo {}"));
  ASSERT_TRUE(wait_until([&] { return num_ok() > 0; })) << story();
  const auto orphan = run_command({.argv = {in_bin("tutti"), "worker", "--run", out_.string(),
                                            "--life", "0badc0de", "--id", "7"},
                                   .timeout = std::chrono::seconds(50)});
  EXPECT_FALSE(orphan.timed_out);
  EXPECT_THAT(orphan.err, HasSubstr("the driver that asked for this worker is gone"));
  ::kill(driver.pid(), SIGTERM);
  driver.wait();
}

TEST_F(Scheduler, ThreeBrokenNodesOfTenAreLeftOut) {
  const std::string broken =
      ", job_script_prologue: ['case \"x$SLURM_ARRAY_TASK_ID\" in x0|x1|x2) echo no disk; exit 7;; "
      "esac']";
  const auto result = run(command(200, 10, "sleep 0.2; echo {}", broken));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(num_ok(), 200U);
  EXPECT_THAT(read_file(state_ / "101_0.log"), HasSubstr("no disk")) << "nothing was broken";
}

TEST_F(Scheduler, WhenNoNodeWorksTheRunEndsWithTheNodesAndTheirWords) {
  const auto result =
      run(command(10, 4, "echo {}", ", job_script_prologue: ['echo no disk today >&2; exit 7']"));
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no worker came up"));
  EXPECT_THAT(result.err, HasSubstr("starts of workers failed: node1"));
}

// A login profile that waits for a lock: the walltime is over before the worker begins.
TEST_F(Scheduler, JobsThatEndBeforeTheirWorkersBeginEndTheRun) {
  write_file_atomic(state_ / "timelimit", "1");
  const auto result =
      run(command(10, 1, "echo {}", ", job_script_prologue: ['exec sleep 1000 # a lock']"));
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_EQ(num_submissions(), 3);
  EXPECT_THAT(result.err, HasSubstr("warning: worker 0 never began: its job 101 is over (TIMEOUT"));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("no worker came up, 3 starts of workers failed"),
                    HasSubstr("their jobs ran for"), HasSubstr("says nothing"), HasSubstr("103"),
                    HasSubstr("login profile"), HasSubstr("parallel.options.walltime")));
  const auto status = run(about_run({"status"}));
  EXPECT_THAT(status.out, AllOf(HasSubstr("stopped"), HasSubstr("reason: no worker came up")));
  EXPECT_EQ(run(about_run({"wait"})).exit_code, 6);
}

TEST_F(Scheduler, JobsThatEndWithoutAnErrorBeforeTheirWorkersBeginEndTheRun) {
  const auto result = run(command(10, 1, "echo {}", ", job_script_prologue: ['exit 0']"));
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_EQ(num_submissions(), 3);
  EXPECT_THAT(result.err, HasSubstr("worker 0 never began: its job 101 is over"));
}

// The start-up leaves the worker no time to do anything: it says hello and has to go.
TEST_F(Scheduler, WorkersWhoseTimeIsUpWhenTheyBeginEndTheRun) {
  const auto result =
      run(command(10, 1, "echo {}",
                  ", job_extra_directives: ['--time=00:00:20'], drain_margin: 15, "
                  "job_script_prologue: ['tutti_started=$((tutti_started - 20))']"));
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("left before it was ready (walltime)"),
                                HasSubstr("no worker came up"), HasSubstr("login profile"),
                                Not(HasSubstr("item 0"))));
}

TEST_F(Scheduler, AnAsynchronousRunSaysThatItsJobsEndedBeforeTheirWorkersBegan) {
  write_file_atomic(state_ / "timelimit", "1");
  const auto submitted = run(
      command(10, 2, "echo {}", ", job_script_prologue: ['exec sleep 1000']", "  async: true\n"));
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  const auto waited = run(about_run({"wait"}));
  EXPECT_EQ(waited.exit_code, 6) << waited.out << waited.err;
  EXPECT_THAT(
      waited.err,
      AllOf(HasSubstr("reason: 2 jobs ended before their workers were ready, the last one: job "
                      "101_1: TIMEOUT"),
            HasSubstr("says nothing"), HasSubstr("walltime"), HasSubstr("login profile")));
  EXPECT_THAT(run(about_run({"status"})).out,
              HasSubstr("2 jobs ended before their workers were ready"));
}

// Somebody takes jobs that wait out of the queue: no start.
TEST_F(Scheduler, AJobThatWaitsIsNoStartThatCameToNothing) {
  behave("pending");
  Process driver = start(command(10, 2, "echo {}"));
  ASSERT_TRUE(happens("101_1.pending")) << story();
  ASSERT_TRUE(wait_until([&] {
    return run(about_run({"status"})).out.find("2 jobs wait") != std::string::npos;
  })) << story();
  EXPECT_EQ(num_submissions(), 1) << story();
  ::kill(driver.pid(), SIGTERM);
  EXPECT_EQ(driver.wait().exit_code, 85) << story();
}

TEST_F(Scheduler, AJobThatIsHeldDoesNotStayInTheQueueWhenAnAsynchronousRunIsDone) {
  behave("hold");
  write_file_atomic(state_ / "reason", "JobHeldAdmin");
  const auto submitted = run(command(20, 2, "echo {}", "", "  async: true\n"));
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  ASSERT_TRUE(fs::exists(state_ / "101_1.pending"));
  const auto waited = run(about_run({"wait"}));
  EXPECT_EQ(waited.exit_code, 0) << waited.err;
  EXPECT_EQ(num_ok(), 20U);
  EXPECT_TRUE(happens("101_1.cancelled"));
}

TEST_F(Scheduler, AJobThatANodeCouldNotStartIsTakenOutOfTheQueueAndReplaced) {
  behave("hold");
  write_file_atomic(state_ / "reason", "launch failed requeued held");
  Process driver = start(command(100000, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(happens("101_1.cancelled")) << story();
  EXPECT_TRUE(wait_until([&] { return num_submissions() > 1; })) << story();
  ::kill(driver.pid(), SIGTERM);
  EXPECT_EQ(driver.wait().exit_code, 85) << story();
}

// Slurm hears of a failed launch from a node that stood still, and puts the job back though it was cancelled meanwhile.
TEST_F(Scheduler, AJobWhoseNodeStandsStillDoesNotComeBackAfterTheRun) {
  behave("still");
  const auto result = run(command(20, 2, "echo {}"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(num_ok(), 20U);
  EXPECT_TRUE(fs::exists(state_ / "101_1.cancelled")) << result.err;
  EXPECT_FALSE(fs::exists(state_ / "101_1.pending")) << "it is held in the queue for ever";
}

TEST_F(Scheduler, AJobWhoseNodeStandsStillDoesNotComeBackAfterItsDriverWasKilled) {
  behave("still");
  Process driver = start(command(100000, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(wait_until([&] { return num_ok() > 0; })) << story();
  ::kill(driver.pid(), SIGKILL);
  driver.wait();
  const auto cancel = run(about_run({"cancel"}));
  EXPECT_EQ(cancel.exit_code, 0) << cancel.err;
  EXPECT_TRUE(fs::exists(state_ / "101_1.cancelled")) << cancel.err;
  EXPECT_FALSE(fs::exists(state_ / "101_1.pending"));
}

// It is reported once and replaced, but stays ours until it is out of the queue.
TEST_F(Scheduler, AHeldJobThatCouldNotBeCancelledIsTriedAgain) {
  behave("hold");
  behave("fail_scancel");
  write_file_atomic(state_ / "reason", "launch failed requeued held");
  Process driver = start(command(100000, 2, "sleep 0.05; echo {}"));
  ASSERT_TRUE(happens("scancel_fails")) << story();
  behave_again("fail_scancel");
  EXPECT_TRUE(happens("101_1.cancelled")) << story();
  ::kill(driver.pid(), SIGTERM);
  EXPECT_EQ(driver.wait().exit_code, 85) << story();
}

// The work is done; what is in the queue is said, and the next command there takes it out.
TEST_F(Scheduler, WhatADoneRunCouldNotCancelIsSaidAndTakenOutByTheNextCommand) {
  for (const bool by_map : {false, true}) {
    fs::remove_all(out_);
    fs::remove_all(state_);
    fs::create_directories(state_);
    behave("hold");
    behave("fail_scancel");
    write_file_atomic(state_ / "reason", by_map ? "launch failed requeued held" : "Resources");
    const auto result = run(command(20, 2, "echo {}"));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, ContainsRegex("jobs may still be in the queue: .*101_1"));
    EXPECT_THAT(run(about_run({"status"})).out,
                AllOf(HasSubstr("done"), ContainsRegex("jobs may still be in the queue: .*101_1.*; "
                                                       "tutti cancel takes them out")));
    behave_again("fail_scancel");
    const auto next = run(by_map ? command(20, 2, "echo {}") : about_run({"cancel"}));
    EXPECT_EQ(next.exit_code, 0) << next.err;
    EXPECT_TRUE(fs::exists(state_ / "101_1.cancelled")) << next.out << next.err;
    EXPECT_FALSE(fs::exists(state_ / "101_1.pending"));
    EXPECT_THAT(run(about_run({"status"})).out, Not(HasSubstr("jobs may still")));
  }
}

// Each job is told of a limit of 20 s, prepares to leave after 5 and is killed after 8.
TEST_F(Scheduler, AnItemLongerThanTheWalltimeFailsAndTheOthersAreDone) {
  write_file_atomic(state_ / "timelimit", "8");
  const auto result = run(command(3, 1, "test {} != 1 || exec sleep 1000; echo {}",
                                  ", job_extra_directives: ['--time=00:00:20'], drain_margin: 15",
                                  "  on_error: skip\n  max_retries: 2\n"));
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_EQ(num_ok(), 2U);
  EXPECT_THAT(result.err, HasSubstr("it begins anew in another job")) << "no word of it";
  EXPECT_THAT(read_file(out_ / "failed.jsonl"),
              AllOf(HasSubstr("for the 2nd time"), HasSubstr("parallel.options.walltime")));
}

}  // namespace
}  // namespace tutti::parallel
