// The life of jobs over a scheduler that is played: lags, lies, refusals.
#include <cstdlib>
#include <set>

#include "tests/parallel/backends/support.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/parallel/wire/secrets.h"
#include "tutti/parallel/wire/worker_env.h"

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobQueue : public ::testing::Test {
 protected:
  JobQueueBackend backend(CommandRunner& runner, const std::string& yaml) {
    WorkerLaunch launch = example_launch();
    launch.run_folder = folder_.path();
    return JobQueueBackend(make_slurm(), options_from(SchedulerKind::kSlurm, yaml), launch, runner,
                           clock_);
  }
  TempFolder folder_;
  FakeClock clock_;
};

TEST_F(JobQueue, CountsWorkersIntoJobsOfAnArray) {
  PlayedScheduler slurm([](const Command&) { return says("50\n"); });
  auto queue = backend(slurm, "{cores: 8, processes: 4, memory: 8GB}");
  const auto jobs = queue.submit(10);  // ceil(10 / 4) = 3 jobs
  ASSERT_EQ(jobs.size(), 3U);
  EXPECT_EQ(jobs[2].job_id, "50_2");
  EXPECT_THAT(jobs[2].worker_ids, ElementsAre(8, 9, 10, 11));
  ASSERT_EQ(slurm.asked.size(), 1U);
  EXPECT_THAT(read_file(folder_.path() / "scripts/job-0.sh"), HasSubstr("--array=0-2"));
  // later jobs go on counting
  EXPECT_THAT(queue.submit(1)[0].worker_ids, ElementsAre(12, 13, 14, 15));
}

// What a queue may show to others is worth as little as can be.
TEST_F(JobQueue, ExportedKeysAreThoseOfTheSubmissionsOwnWorkers) {
  KeyRing keys(folder_.path());
  keys.publish({.endpoint = "tcp://127.0.0.1:1", .server_key = std::string(40, 'x')});
  std::vector<std::set<std::string>> exported;
  PlayedScheduler slurm([&](const Command& command) {
    ::setenv(kConnectVariable, command.env.at(kConnectVariable).c_str(), 1);
    const std::string hex = command.env.at(kConnectVariable);
    EXPECT_LT(hex.size(), 16U << 10);
    std::string text;
    for (std::size_t i = 0; i < hex.size(); i += 2)
      text.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    std::set<std::string> ids;
    const Json info = Json::parse(text);
    for (const auto& [id, key] : info.at("keys").items()) ids.insert(id);
    exported.push_back(ids);
    return says(std::to_string(exported.size()) + "\n");
  });
  WorkerLaunch launch = example_launch();
  launch.run_folder = folder_.path();
  launch.keys = &keys;
  JobQueueBackend queue(
      make_slurm(),
      options_from(SchedulerKind::kSlurm, "{cores: 1, memory: 1GB, export_keys: true}"), launch,
      slurm, clock_);
  EXPECT_EQ(queue.submit(100).size(), 100U);
  ASSERT_EQ(exported.size(), 2U);
  EXPECT_EQ(exported[0].size(), 64U);
  EXPECT_EQ(exported[1].size(), 36U);
  EXPECT_TRUE(exported[0].contains("63") && exported[1].contains("64"));
  // A worker of the second one finds its own key there, which is the one of the file.
  const KeyPair own = read_connect_file("/nowhere", 99).worker;
  EXPECT_EQ(own.secret_key, read_file(worker_key_file(folder_.path(), 99)));
  EXPECT_EQ(std::getenv(kConnectVariable), nullptr) << "items must not see it";
}

// An asynchronous worker whose time is up submits another, and some schedulers give jobs the
// environment they were submitted from.
TEST_F(JobQueue, AJobIsNoChildOfTheWorkerThatSubmitsIt) {
  std::vector<std::string> unset;
  PlayedScheduler slurm([&](const Command& command) {
    unset = command.unset_env;
    return says("50\n");
  });
  backend(slurm, "{cores: 1, memory: 1GB}").submit(1);
  EXPECT_THAT(unset, ElementsAre(worker_env::kMark));
}

TEST_F(JobQueue, ClustersWithoutArraysGetOneJobAfterAnother) {
  int next = 70;
  PlayedScheduler slurm([&](const Command& command) {
    const bool array = read_file(command.argv.back()).find("--array") != std::string::npos;
    return array
               ? refuses(
                     "sbatch: error: Batch job submission failed: Invalid job array specification")
               : says(std::to_string(next++) + "\n");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  const auto jobs = queue.submit(3);
  ASSERT_EQ(jobs.size(), 3U);
  EXPECT_EQ(jobs[2].job_id, "72");
  EXPECT_THAT(jobs[2].worker_ids, ElementsAre(2));
}

TEST_F(JobQueue, ARefusalHasTheSchedulersWords) {
  PlayedScheduler slurm(
      [](const Command&) { return refuses("sbatch: error: invalid partition specified: nope"); });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB, queue: nope}");
  try {
    queue.submit(1);
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("invalid partition specified: nope"));
    EXPECT_THAT(error.what(), HasSubstr("sbatch --parsable"));
  }
  EXPECT_EQ(slurm.asked.size(), 1U) << "a wrong request must not be repeated";
}

TEST_F(JobQueue, WhatNoHostHasIsRefusedBeforeItWaitsForEver) {
  PlayedScheduler sge([](const Command& command) {
    if (command.argv[0] == "qhost")
      return says("HOSTNAME ARCH NCPU LOAD MEMTOT\na lx 4 0.1 16.0G\nb lx 4 0.1 8.0G\n");
    return says("7\n");
  });
  const auto submit = [&](const std::string& more) {
    WorkerLaunch launch = example_launch();
    launch.run_folder = folder_.path();
    JobQueueBackend queue(
        make_sge(), options_from(SchedulerKind::kSge, "{cores: 2, processes: 1, " + more + "}"),
        launch, sge, clock_);
    return queue.submit(1).size();
  };
  try {
    submit("memory: 32GB");
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("by `qhost` the largest has 16.0G (a)"));
  }
  EXPECT_EQ(sge.asked, std::vector<std::string>{"qhost"}) << "nothing may be submitted";
  EXPECT_EQ(submit("memory: 16GiB"), 1U);
  EXPECT_EQ(submit("memory: 32GB, check_hosts: false"), 1U);
  EXPECT_EQ(submit("memory: 32GB, memory_resource: ''"), 1U);
}

TEST_F(JobQueue, ABusyControllerIsTriedAgain) {
  int calls = 0;
  PlayedScheduler slurm([&](const Command&) {
    return ++calls == 1 ? refuses(
                              "sbatch: error: Batch job submission failed: Socket timed out on "
                              "send/recv operation")
                        : says("5\n");
  });
  EXPECT_EQ(backend(slurm, "{cores: 1, memory: 1GB}").submit(1).at(0).job_id, "5");
}

TEST_F(JobQueue, NoJobIdIsAnError) {
  PlayedScheduler slurm([](const Command&) { return says("all right!\n"); });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  EXPECT_THROW(queue.submit(1), SchedulerError);
}

TEST_F(JobQueue, AMissingCommandSaysWhereToRun) {
  PlayedScheduler slurm([](const Command&) {
    return refuses("cannot start sbatch: No such file or directory", 127);
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  try {
    queue.submit(1);
    FAIL();
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("host with the slurm commands"));
  }
}

TEST_F(JobQueue, FollowsAJobAndReportsItsEndOnce) {
  std::string answer = "9|PENDING||Priority\n";
  PlayedScheduler slurm(
      [&](const Command& command) { return says(command.argv[0] == "sbatch" ? "9\n" : answer); });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.submit(1);
  EXPECT_EQ(queue.poll().at(0).reason, "Priority");
  answer = "9|RUNNING|n1|None\n";
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kPending) << "asked again too early";
  clock_.advance(Seconds(40));
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kRunning);
  answer = "9|TIMEOUT|n1|TimeLimit\n";
  clock_.advance(Seconds(40));
  const auto last = queue.poll();
  EXPECT_EQ(last.at(0).phase, JobPhase::kFailed);
  EXPECT_TRUE(last.at(0).preempted);
  EXPECT_TRUE(queue.poll().empty());
}

TEST_F(JobQueue, ALaggingSchedulerDoesNotLoseAJobAtOnce) {
  std::string answer;
  PlayedScheduler slurm([&](const Command& command) {
    if (command.argv[0] == "sbatch") return says("9\n");
    if (command.argv[0] == "squeue")
      return answer.empty() ? refuses("slurm_load_jobs error: Invalid job id specified")
                            : says(answer);
    return refuses("no accounting");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.submit(1);
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kPending);
  clock_.advance(Seconds(5));
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kPending) << "5 s are lag, not loss";
  answer = "9|RUNNING|n1|None\n";
  clock_.advance(Seconds(40));
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kRunning);
  answer.clear();
  clock_.advance(Seconds(40));
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kRunning) << "missing once is not gone";
  clock_.advance(Seconds(40));
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kRunning) << "nor is it after less than a minute";
  clock_.advance(Seconds(40));
  EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kVanished);
}

CommandResult no_answer() {
  CommandResult result;
  result.timed_out = true;
  return result;
}

TEST_F(JobQueue, ASubmissionWithoutAnAnswerIsFoundAndNotRepeated) {
  std::string script;
  bool known = false;
  int submissions = 0;
  PlayedScheduler slurm([&](const Command& command) {
    if (command.argv[0] == "sbatch") {
      ++submissions;
      script = command.argv.back();
      return no_answer();
    }
    if (command.argv.back() == "%i|%o")
      return known ? says("50_1|" + script + "\n50_0|" + script + "\n7|/home/me/other.sh\n")
                   : no_answer();
    return says("50_0|PENDING||Priority\n50_1|PENDING||Priority\n");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  EXPECT_THROW(queue.submit(2), SchedulerUnreachable);
  EXPECT_THROW(queue.submit(2), SchedulerUnreachable) << "nobody can be asked";
  known = true;
  const auto jobs = queue.submit(2);
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].job_id, "50_0");
  EXPECT_THAT(jobs[0].worker_ids, ElementsAre(0));
  EXPECT_THAT(jobs[1].worker_ids, ElementsAre(1));
  EXPECT_EQ(submissions, 1);
}

TEST_F(JobQueue, ASubmissionThatTheSchedulerDoesNotHaveIsMadeAgain) {
  int submissions = 0;
  PlayedScheduler slurm([&](const Command& command) {
    if (command.argv[0] != "sbatch") return says("");
    return ++submissions == 1 ? no_answer() : says("51\n");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  EXPECT_THROW(queue.submit(1), SchedulerUnreachable);
  EXPECT_THROW(queue.submit(1), SchedulerUnreachable) << "it may still turn up";
  clock_.advance(Seconds(11));
  EXPECT_EQ(queue.submit(1).at(0).job_id, "51");
}

TEST_F(JobQueue, AWordWithoutAnIdIsLookedForToo) {
  std::string script;
  PlayedScheduler slurm([&](const Command& command) {
    if (command.argv[0] == "sbatch") {
      script = command.argv.back();
      return says("\x1b[31m?!\n");
    }
    return says("52|" + script + "\n");
  });
  EXPECT_EQ(backend(slurm, "{cores: 1, memory: 1GB}").submit(1).at(0).job_id, "52");
}

TEST_F(JobQueue, ThousandsOfJobsAreAskedForInCommandsOfBoundedLength) {
  PlayedScheduler slurm(
      [&](const Command& command) { return says(command.argv[0] == "sbatch" ? "9\n" : ""); });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.submit(1200);
  slurm.asked.clear();
  queue.poll();
  int queries = 0;
  for (const std::string& command : slurm.asked) {
    EXPECT_LT(command.size(), 16000U);
    queries += command.starts_with("squeue") ? 1 : 0;
  }
  EXPECT_EQ(queries, 3);
}

TEST_F(JobQueue, BadNodesAreLeftOut) {
  PlayedScheduler slurm([](const Command&) { return says("50\n"); });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.avoid({"n7", "n9"});
  queue.submit(1);
  EXPECT_THAT(slurm.asked.at(0), HasSubstr("--exclude=n7,n9"));
}

TEST_F(JobQueue, WhatAnEarlierDriverLeftIsFoundByItsLife) {
  const std::string scripts = (folder_.path() / "scripts").string();
  PlayedScheduler slurm([&](const Command& command) {
    if (command.argv[0] == "squeue")
      return says("3|" + scripts + "/job-0badc0de-4.sh\n4|" + scripts +
                  "/job-600d-0.sh\n5|/other.sh\n");
    return says("");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.cancel_left_over("0badc0de", {"5", "6"});
  EXPECT_EQ(slurm.asked.back(), "scancel 3 5") << "noted or of its life, and still in the queue";
}

// Nobody knows what a driver had submitted that was killed before it had an answer.
TEST_F(JobQueue, WhatAnEarlierDriverLeftIsUnknownWhenNobodyAnswers) {
  PlayedScheduler slurm([&](const Command&) { return refuses("Unable to contact controller"); });
  EXPECT_FALSE(
      backend(slurm, "{cores: 1, memory: 1GB}").cancel_left_over("0badc0de", {}).all_gone());
}

TEST_F(JobQueue, JobsThatMayBeAboutToBeginDoNotComeBackOnceCancelled) {
  PlayedScheduler slurm([&](const Command& command) {
    if (command.argv[0] == "sbatch") return says(slurm.asked.size() == 1 ? "9\n" : "12\n");
    return says(
        "9_0|RUNNING|n1|None\n9_1|RUNNING|n2|None\n9_2|PENDING||None\n12|RUNNING|n1|None\n");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.submit(3);
  queue.submit(1);
  write_file_atomic(folder_.path() / "logs/worker-0.log", "");  // it has begun
  queue.poll();
  slurm.asked.clear();
  queue.cancel();
  EXPECT_THAT(slurm.asked,
              ElementsAre("scontrol update JobId=12 Requeue=0",
                          "scontrol update JobId=9_1,2 Requeue=0", "scancel 9_0 9_1 9_2 12"));
}

TEST_F(JobQueue, ASchedulerThatCannotBeAskedChangesNothing) {
  bool down = false;
  PlayedScheduler slurm([&](const Command& command) {
    if (command.argv[0] == "sbatch") return says("9\n");
    return down ? refuses(
                      "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
                : says("9|RUNNING|n1|None\n");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.submit(1);
  queue.poll();
  down = true;
  for (int i = 0; i < 50; ++i) {
    clock_.advance(Seconds(40));
    EXPECT_EQ(queue.poll().at(0).phase, JobPhase::kRunning);
  }
}

TEST_F(JobQueue, CancelIsOneCommandAndNeverThrows) {
  PlayedScheduler slurm([&](const Command& command) {
    return command.argv[0] == "sbatch" ? says("9\n") : refuses("scancel: error: no");
  });
  auto queue = backend(slurm, "{cores: 1, memory: 1GB}");
  queue.submit(3);
  queue.cancel();
  EXPECT_THAT(slurm.asked, ::testing::Contains("scancel 9_0 9_1 9_2"));
  queue.cancel({"9_1"});
  EXPECT_THAT(slurm.asked, ::testing::Contains("scancel 9_1"));
}

TEST_F(JobQueue, ScriptsAreShownAndNothingIsSubmitted) {
  PlayedScheduler slurm([](const Command&) { return says("1\n"); });
  const auto queue = backend(slurm, "{cores: 2, processes: 1, memory: 1GB}");
  const auto previews = queue.scripts(4);
  ASSERT_EQ(previews.size(), 1U);
  EXPECT_THAT(previews[0].script, HasSubstr("--array=0-3"));
  EXPECT_THAT(previews[0].submit_command, HasSubstr("sbatch --parsable"));
  EXPECT_TRUE(slurm.asked.empty());
}

}  // namespace
}  // namespace tutti::parallel
