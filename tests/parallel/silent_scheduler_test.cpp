// Asynchronous runs on a scheduler whose commands do not answer: whoever waits at a terminal is told
// what the folder knows, and nothing is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/parallel/fake_slurm.h"

namespace tutti::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SilentScheduler : public Scheduler {
 protected:
  Command submission(const std::string& options = "") const {
    Command own = command(4, 2, "echo {}", options);
    std::replace(own.argv.begin(), own.argv.end(), std::string("--quiet"), std::string("--async"));
    return own;
  }
  // A run whose two jobs wait in the queue.
  void submit() const {
    behave("pending");
    const auto submitted = run(submission());
    ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
    ASSERT_TRUE(fs::exists(state_ / "101_1.pending"));
  }
  // Impatiently: for a scheduler that hangs.
  CommandResult about(const std::vector<std::string>& words) const {
    Command command = about_run(words);
    command.env["TUTTI_SCHEDULER_PATIENCE"] = "1";
    return run(command);
  }
  bool cancelled() const {
    return fs::exists(state_ / "101_0.cancelled") && fs::exists(state_ / "101_1.cancelled");
  }
};

TEST_F(SilentScheduler, TheJobsOfASubmissionAreToldAndKeptBeforeItIsAskedAboutThem) {
  behave("pending");
  behave("hang");
  Command command = submission();
  command.env["TUTTI_SCHEDULER_PATIENCE"] = "1000";
  for (const auto& [signal, code] : {std::pair(SIGTERM, 85), std::pair(SIGINT, 130)}) {
    fs::remove_all(out_);
    fs::remove(state_ / "next");
    fs::remove(state_ / "hangs");
    fs::remove(folder_.path() / "log");
    Process map = start(command);
    ASSERT_TRUE(happens("hangs"));
    EXPECT_THAT(story(), HasSubstr("submitted 2 jobs (101_0 101_1) for 4 items"));
    EXPECT_TRUE(fs::exists(out_ / ".tutti" / "async" / "jobs" / "0"));
    ::kill(map.pid(), signal);
    EXPECT_EQ(map.wait().exit_code, code) << story();
    EXPECT_THAT(story(),
                AllOf(HasSubstr("they are submitted: 101_0 101_1"), HasSubstr("tutti cancel")));
  }
  behave_again("hang");
  const auto status = run(about_run({"status"}));
  EXPECT_THAT(status.out, AllOf(HasSubstr("queued"), HasSubstr("job 101_0  pending")));
}

TEST_F(SilentScheduler, ASubmissionDoesNotWaitForTheAnswerOfAQuery) {
  behave("pending");
  behave("hang");
  Command command = submission();
  command.env["TUTTI_SCHEDULER_PATIENCE"] = "1";
  const auto submitted = run(command);
  EXPECT_EQ(submitted.exit_code, 0) << submitted.err;
  EXPECT_THAT(submitted.err, HasSubstr("the scheduler does not answer whether they can run"));
}

TEST_F(SilentScheduler, StatusAndWaitSayWhatTheFolderKnows) {
  submit();
  behave("hang");
  const auto status = about({"status"});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_THAT(status.out, AllOf(HasSubstr("queued, 0 of 4 items ok"),
                                HasSubstr("the scheduler does not answer: `squeue"),
                                HasSubstr("shown is what the folder knows"),
                                HasSubstr("job 101_0  unknown"), HasSubstr("job 101_1  unknown")));
  const Json json = parse_json(about({"status", "--json"}).out, "status");
  EXPECT_THAT(json["async"]["unanswered"].get<std::string>(), HasSubstr("squeue"));

  Command command = about_run({"wait"});
  command.env["TUTTI_SCHEDULER_PATIENCE"] = "0.2";
  fs::remove(folder_.path() / "log");
  Process wait = start(command);
  ASSERT_TRUE(
      trial::wait_until([&] { return story().find("still waiting") != std::string::npos; }));
  // Nobody answers, so nobody is dead; then the queue is there again, and the jobs have gone.
  EXPECT_FALSE(wait.poll());
  for (const char* job : {"101_0", "101_1"}) {
    behave(job + std::string(".cancelled"));
    behave_again(job + std::string(".pending"));
  }
  behave_again("hang");
  EXPECT_EQ(wait.wait().exit_code, 85) << story();
}

TEST_F(SilentScheduler, CancelDoesWithoutAQuery) {
  submit();
  behave("hang");
  const auto cancel = about({"cancel"});
  EXPECT_EQ(cancel.exit_code, 0) << cancel.err;
  EXPECT_THAT(cancel.out, HasSubstr("stopped"));
  EXPECT_TRUE(cancelled()) << cancel.err;
}

TEST_F(SilentScheduler, JobsThatCouldNotBeCancelledAreNamedAndTriedAgain) {
  submit();
  behave("hang");
  behave("hang_scancel");
  const auto cancel = about({"cancel"});
  EXPECT_EQ(cancel.exit_code, 6) << cancel.out << cancel.err;
  EXPECT_THAT(cancel.err, AllOf(HasSubstr("jobs may still be in the queue: 101_0 101_1"),
                                HasSubstr("give the same command again")));
  EXPECT_THAT(cancel.out, HasSubstr("stopped"));
  EXPECT_FALSE(cancelled());
  EXPECT_THAT(about({"status"}).out, HasSubstr("job 101_0  unknown"));
  behave_again("hang_scancel");
  behave_again("hang");
  const auto again = run(about_run({"cancel"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(cancelled()) << again.err;
}

// Workers of other hosts that nobody has watched count as alive, unless their jobs have ended.
TEST_F(SilentScheduler, StatusDoesNotTakeTheWorkersOfEndedJobsForAlive) {
  Command async = command(100000, 2, "sleep 0.05; echo {}", "", "  async: true\n");
  ASSERT_EQ(run(async).exit_code, 0);
  ASSERT_TRUE(trial::wait_until([&] { return num_ok() > 5; })) << story();
  for (const char* job : {"101_0", "101_1"})
    ::kill(-std::stoi(read_file(state_ / (job + std::string(".pid")))), SIGKILL);
  for (const auto& entry : fs::directory_iterator(out_ / ".tutti" / "async" / "workers")) {
    Json note = parse_json(read_file(entry.path()), entry.path().string());
    note["host"] = note["supervisor"]["host"] = "elsewhere";
    write_file_atomic(entry.path(), note.dump());
  }
  ASSERT_TRUE(trial::wait_until([&] {
    return run(about_run({"status"})).out.find("died, ") != std::string::npos;
  })) << run(about_run({"status"})).out;
}

// Schedulers forget how a job ended within minutes.
TEST_F(SilentScheduler, WhyNoJobDidAnythingIsKept) {
  const auto submitted = run(
      submission(", job_script_prologue: ['until [ -e \"$D\"/go ]; do sleep 0.05; done', 'echo no "
                 "disk today >&2; exit 7']"));
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  behave("go");
  const auto waited = run(about_run({"wait"}));
  EXPECT_EQ(waited.exit_code, 6) << waited.out << waited.err;
  EXPECT_THAT(waited.err, AllOf(HasSubstr("job 101_0  failed"), HasSubstr("no disk today")));
  // The scheduler knows nothing of them any more.
  for (const char* job : {"101_0", "101_1"}) behave_again(job + std::string(".script"));
  const auto status = run(about_run({"status"}));
  EXPECT_EQ(status.exit_code, 0);
  EXPECT_THAT(status.out,
              AllOf(HasSubstr("died, 0 of 4 items ok"),
                    HasSubstr("reason: 2 jobs ended before their workers were ready"),
                    HasSubstr("job 101_1  failed  FAILED"), HasSubstr("| no disk today")));
  const Json json = parse_json(run(about_run({"status", "--json"})).out, "status");
  EXPECT_EQ(json["async"]["jobs"].size(), 2U);
  EXPECT_THAT(json["async"]["jobs"][0]["log_tail"].get<std::string>(), HasSubstr("no disk today"));
}

TEST_F(SilentScheduler, WhyNoJobOfASubmissionCanRunIsKept) {
  behave("pending");
  write_file_atomic(state_ / "reason", "InvalidAccount");
  EXPECT_EQ(run(submission()).exit_code, 6);
  EXPECT_TRUE(cancelled());
  const auto status = run(about_run({"status"}));
  EXPECT_THAT(status.out, HasSubstr("reason: job 101_0 cannot run: InvalidAccount"));
}

TEST_F(SilentScheduler, WhyASubmissionWasRefusedIsKept) {
  write_file_atomic(state_ / "refuse", "sbatch: error: invalid partition specified: debug\n");
  const auto refused = run(submission());
  EXPECT_EQ(refused.exit_code, 6) << refused.err;
  const auto status = run(about_run({"status"}));
  EXPECT_THAT(status.out, AllOf(HasSubstr("stopped, 0 of 4 items ok"), HasSubstr("reason: "),
                                HasSubstr("invalid partition specified: debug")));
  const auto waited = run(about_run({"wait"}));
  EXPECT_EQ(waited.exit_code, 6) << waited.out;
  EXPECT_THAT(waited.err, HasSubstr("invalid partition specified: debug"));
  const Json json = parse_json(run(about_run({"status", "--json"})).out, "status");
  EXPECT_THAT(json["reason"].get<std::string>(), HasSubstr("invalid partition"));
}

}  // namespace
}  // namespace tutti::parallel
