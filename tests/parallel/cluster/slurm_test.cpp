// Slurm itself: four virtual nodes with fake GPUs (tests/beds/slurm).
#include <signal.h>

#include <set>

#include "tests/parallel/cluster/bed.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class Slurm : public BedTest {
 protected:
  static void SetUpTestSuite() { bring_up("slurm"); }
  static void TearDownTestSuite() { bring_down(); }
  ParallelSettings slurm(int n_workers, const std::string& more = "") {
    return settings("{env: slurm, n_workers: " + std::to_string(n_workers) +
                    ", options: {cores: 1, processes: 1, memory: 200MB, walltime: '00:10:00'" +
                    more + "}}");
  }
  // Ids of our jobs in a state, one per line of squeue.
  std::vector<std::string> jobs(const std::string& state) {
    return split_words(sh("squeue -h -r -t " + state + " -o %i"));
  }
};

TEST_F(Slurm, AThousandItemsGiveTheBytesOfALocalRun) {
  RunReport report;
  const auto here = run(settings("{env: local, n_workers: 2}"), "hundred_bytes", 1000);
  const auto there = run(slurm(4), "hundred_bytes", 1000, &report);
  EXPECT_EQ(here, there);
  EXPECT_EQ(report.workers.size(), 4U);
  EXPECT_TRUE(eventually([&] { return jobs("all").empty() || jobs("PD,R,CG,CF").empty(); }))
      << "jobs were left in the queue";
}

TEST_F(Slurm, WorkersRunInTheirJobsWithTheirGpus) {
  const auto results = run(settings("{env: slurm, n_workers: 4, options: {cores: 2, processes: 2, "
                                    "memory: 200MB, job_extra_directives: ['--gres=gpu:2']}}"),
                           "where", 200);
  std::set<std::string> hosts, jobs, gpus;
  for (const auto& text : results) {
    const Json at = parse_json(text, "result");
    hosts.insert(at["host"]);
    jobs.insert(at["job"]);
    gpus.insert(at["gpus"]);
  }
  EXPECT_EQ(jobs.size(), 2U) << "two jobs of two workers";
  EXPECT_TRUE(hosts.begin()->starts_with("node")) << *hosts.begin();
  EXPECT_EQ(gpus, (std::set<std::string>{"0", "1"})) << "each worker of a job has a GPU of its own";
}

TEST_F(Slurm, AWrongPartitionIsRefusedInSlurmsWords) {
  try {
    run(slurm(2, ", queue: nowhere"), "hundred_bytes", 10);
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("invalid partition specified: nowhere"));
    EXPECT_EQ(error.exit_code(), ExitCode::kScheduler);
  }
}

TEST_F(Slurm, ImpossibleMemoryIsRefusedInSlurmsWords) {
  try {
    run(slurm(1, ", job_mem: 900G"), "hundred_bytes", 10);
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sbatch: error"));
  }
}

TEST_F(Slurm, ACancelledJobIsReplacedAndCostsNothing) {
  RunReport report;
  bool cancelled = false;
  const auto results = run(slurm(3), "where", 600, &report, [&](std::uint64_t done) {
    if (done < 60 || cancelled) return;
    cancelled = true;
    const auto running = jobs("R");
    ASSERT_FALSE(running.empty());
    sh("scancel " + running.front());
  });
  ASSERT_TRUE(cancelled);
  EXPECT_EQ(std::count(results.begin(), results.end(), ""), 0);
  EXPECT_EQ(report.failed, 0U);
  EXPECT_GE(report.workers.size(), 4U) << "three and a replacement";
}

TEST_F(Slurm, AKilledWorkerIsReplaced) {
  RunReport report;
  bool killed = false;
  const auto results = run(slurm(2), "where", 600, &report, [&](std::uint64_t done) {
    if (done < 60 || killed) return;
    killed = true;
    // the workers are processes of this machine, under slurmstepd
    const auto pids =
        split_words(sh("pgrep -f 'worker --run " + folder_.path().string() + ".* --id 0'"));
    ASSERT_FALSE(pids.empty());
    sh("kill -9 " + pids.front());
  });
  ASSERT_TRUE(killed);
  EXPECT_EQ(std::count(results.begin(), results.end(), ""), 0);
  EXPECT_EQ(report.workers_lost, 1U);
}

TEST_F(Slurm, WorkersDrainBeforeTheWalltimeAndAreReplaced) {
  // Slurm counts in minutes: with a margin of 55 s, workers leave after 5 s at the latest, over and
  // over.
  RunReport report;
  const auto results = run(settings("{env: slurm, n_workers: 2, options: {cores: 1, memory: 200MB, "
                                    "walltime: 1m, drain_margin: 54}}"),
                           "where", 1000, &report);
  EXPECT_EQ(std::count(results.begin(), results.end(), ""), 0);
  EXPECT_EQ(report.workers_lost, 0U) << "leaving in order is no loss";
  EXPECT_GT(report.workers.size(), 2U);
}

TEST_F(Slurm, FourDriversAtOnce) {
  std::vector<std::vector<std::string>> results(4);
  std::vector<std::thread> drivers;
  const auto four = slurm(2);
  for (auto& mine : results)
    drivers.emplace_back([&, this] { mine = run(four, "hundred_bytes", 300); });
  for (auto& driver : drivers) driver.join();
  for (const auto& one : results) EXPECT_EQ(one, results[0]);
  EXPECT_EQ(std::count(results[0].begin(), results[0].end(), ""), 0);
}

// ---- through the `tutti` program, as on a login node

const std::vector<std::string> kSlowItem = {"sh", "-c", "sleep 0.05; echo {}"};

std::string block(int n_workers, const std::string& more = "") {
  return "{env: slurm, n_workers: " + std::to_string(n_workers) +
         ", options: {cores: 1, processes: 1, memory: 200MB, walltime: '00:10:00', death_timeout: "
         "10" +
         more + "}}";
}

TEST_F(Slurm, MapOfAThousandItemsInBothModes) { expect_local_bytes_in_both_modes(block(4)); }

TEST_F(Slurm, ARefusedSubmissionIsExitSixInSlurmsWords) {
  const auto expect_refused = [&](const std::string& more, const std::string& words, bool async) {
    const auto out = folder_.path() / ("refused-" + std::to_string(next_run_++));
    const auto run = map(block(2, more), out, 10, {"echo"}, async);
    EXPECT_EQ(run.exit_code, 6) << run.err;
    EXPECT_THAT(run.err, HasSubstr(words));
  };
  for (const bool async : {false, true}) {
    expect_refused(", queue: nowhere", "invalid partition specified: nowhere", async);
    expect_refused(", queue: private, account: me", "account", async);
    expect_refused(", job_mem: 900G", "Memory specification can not be satisfied", async);
  }
}

TEST_F(Slurm, AnAsyncRunSurvivesScancelAndKillNine) {
  const std::string expected = local_results(400, kSlowItem);
  const auto out = folder_.path() / "async";
  ASSERT_EQ(map(block(3), out, 400, kSlowItem, true).exit_code, 0);
  ASSERT_TRUE(eventually([&] { return num_ok(out) > 40 && jobs("R").size() == 3; }));
  sh("scancel " + jobs("R").front());
  ASSERT_TRUE(eventually([&] { return num_ok(out) > 100; }));
  const auto pids = split_words(sh("pgrep -f -- '--run " + out.string() + ".* --name'"));
  ASSERT_FALSE(pids.empty());
  sh("kill -9 " + pids.front());
  EXPECT_EQ(wait_for_results(out), expected);
  EXPECT_TRUE(eventually([&] { return jobs("PD,R,CG,CF").empty(); })) << "jobs were left";
}

TEST_F(Slurm, ANodeThatGoesDownCostsNothingInEitherMode) {
  const std::string expected = local_results(300, kSlowItem);
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    auto words =
        map_words(block(3, ", job_extra_directives: ['--exclusive']"), out, 300, kSlowItem, async);
    words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
    Process driver = Process::start({.argv = words, .stdout_path = folder_.path() / "log"});
    ASSERT_TRUE(eventually([&] { return num_ok(out) > 30 && jobs("R").size() == 3; }));
    const std::string node = split_words(sh("squeue -h -t R -o %N"))[0];
    sh("scontrol update nodename=" + node + " state=down reason=test");
    if (!async) {
      EXPECT_EQ(driver.wait().exit_code, 0) << read_file(folder_.path() / "log");
    }
    EXPECT_EQ(wait_for_results(out), expected);
    sh("scontrol update nodename=" + node + " state=resume");
    sh("scancel -u root");  // what Slurm itself has put back into the queue
    ASSERT_TRUE(eventually([&] { return jobs("PD,R,CG,CF").empty(); }));
  }
}

TEST_F(Slurm, AKilledSyncDriverIsResumedAndItsWorkersLeave) {
  const std::string expected = local_results(300, kSlowItem);
  const auto out = folder_.path() / "out";
  auto words = map_words(block(2), out, 300, kSlowItem, false);
  words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
  Process driver = Process::start({.argv = words, .stdout_path = folder_.path() / "log"});
  ASSERT_TRUE(eventually([&] { return num_ok(out) > 30; }));
  ::kill(driver.pid(), SIGKILL);
  driver.wait();
  EXPECT_TRUE(eventually([&] { return jobs("PD,R,CG,CF").empty(); })) << "workers did not leave";
  const std::uint64_t before = num_ok(out);
  EXPECT_LT(before, 300U);
  EXPECT_EQ(map(block(3), out, 300, kSlowItem, false).exit_code, 0);
  EXPECT_EQ(read_file(out / "results.jsonl"), expected);
}

TEST_F(Slurm, AsyncWorkersDrainBeforeTheirWalltimeAndSendSuccessors) {
  const std::string expected = local_results(400, kSlowItem);
  const auto out = folder_.path() / "out";
  const auto run =
      map("{env: slurm, n_workers: 2, options: {cores: 1, memory: 200MB, walltime: 1m, "
          "drain_margin: 54}}",
          out, 400, kSlowItem, true);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(wait_for_results(out), expected);
  const std::string logs = sh("cat " + (out / "logs").string() + "/worker-*.log");
  EXPECT_THAT(logs, HasSubstr("the job's time is nearly up"));
  EXPECT_EQ(logs.find("strikes"), std::string::npos) << logs;
  EXPECT_GT(std::stoi(sh("ls " + (out / "scripts").string() + " | wc -l")), 1) << "no successor";
  EXPECT_TRUE(eventually([&] { return jobs("PD,R,CG,CF").empty(); })) << "jobs were left";
}

TEST_F(Slurm, ARequeuedJobComesBackAsANewWorker) {
  const std::string expected = local_results(400, kSlowItem);
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    auto words = map_words(block(2), out, 400, kSlowItem, async);
    words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
    Process driver = Process::start({.argv = words, .stdout_path = folder_.path() / "log"});
    ASSERT_TRUE(eventually([&] { return num_ok(out) > 30 && jobs("R").size() == 2; }));
    const std::string job = jobs("R").front();
    sh("scontrol requeue " + job);
    // Slurm lets it wait two minutes; we do not.
    EXPECT_TRUE(eventually([&] {
      sh("scontrol update jobid=" + job + " StartTime=now");
      return num_ok(out) == 400 || sh("squeue -h -j " + job + " -o %T") == "RUNNING";
    }));
    if (!async) {
      EXPECT_EQ(driver.wait().exit_code, 0) << read_file(folder_.path() / "log");
    }
    EXPECT_EQ(wait_for_results(out), expected);
    sh("scancel -u root");
    ASSERT_TRUE(eventually([&] { return jobs("PD,R,CG,CF").empty(); }));
  }
}

TEST_F(Slurm, AnOutputFolderMayHaveBlanksAndQuotesInItsName) {
  const auto out = folder_.path() / "a folder's name";
  const auto run = map(block(2), out, 20, {"echo", "{}"}, false);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(num_ok(out), 20U);
}

TEST_F(Slurm, FourDriversOfBothKindsAtOnce) {
  const std::vector<std::string> command = {"printf", "item %s", "{}"};
  const std::string expected = local_results(300, command);
  std::vector<Process> drivers;
  for (int d = 0; d < 4; ++d) {
    const auto out = folder_.path() / ("run-" + std::to_string(d));
    auto words = map_words(block(2), out, 300, command, d % 2 == 1);
    words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
    drivers.push_back(Process::start({.argv = words, .stdout_path = folder_.path() / "log"}));
  }
  for (int d = 0; d < 4; ++d) {
    EXPECT_EQ(drivers[static_cast<std::size_t>(d)].wait().exit_code, 0)
        << read_file(folder_.path() / "log");
    EXPECT_EQ(wait_for_results(folder_.path() / ("run-" + std::to_string(d))), expected);
  }
}

TEST_F(Slurm, CancelTakesWaitingJobsOutOfTheQueue) {
  const auto out = folder_.path() / "out";
  ASSERT_EQ(map(block(2, ", job_extra_directives: ['--begin=now+1hour']"), out, 10, {"echo"}, true)
                .exit_code,
            0);
  EXPECT_THAT(tutti({"status", out.string()}).out, HasSubstr("queued"));
  EXPECT_TRUE(eventually([&] {
    return tutti({"status", out.string()}).out.find("BeginTime") != std::string::npos;
  })) << "the reason is not shown";
  EXPECT_EQ(map(block(2), out, 10, {"echo"}, false).exit_code, 4) << "the folder is in use";
  EXPECT_EQ(tutti({"cancel", out.string()}).exit_code, 0);
  EXPECT_TRUE(eventually([&] { return jobs("PD,R,CG,CF").empty(); }));
  EXPECT_EQ(tutti({"wait", out.string()}).exit_code, 85);
}

}  // namespace
}  // namespace tutti::parallel
