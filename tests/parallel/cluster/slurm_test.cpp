// What Slurm (tests/beds/slurm) has beyond the table of faults: the client's view, GPUs, odd names.
#include <signal.h>

#include <set>

#include "tests/parallel/cluster/beds.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class SlurmClient : public Slurm {
 protected:
  ParallelSettings slurm(int n_workers, const std::string& more = "") {
    return settings(block(n_workers, more));
  }
};

TEST_F(SlurmClient, AThousandItemsGiveTheBytesOfALocalRun) {
  RunReport report;
  const auto here = run(settings("{env: local, n_workers: 2}"), "hundred_bytes", 1000);
  const auto there = run(slurm(4), "hundred_bytes", 1000, &report);
  EXPECT_EQ(here, there);
  EXPECT_EQ(report.workers.size(), 4U);
  EXPECT_TRUE(eventually([&] { return queue_is_empty(); })) << "jobs were left in the queue";
}

TEST_F(SlurmClient, WorkersRunInTheirJobsWithTheirGpus) {
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

TEST_F(SlurmClient, AWrongPartitionIsRefusedInSlurmsWords) {
  try {
    run(slurm(2, ", queue: nowhere"), "hundred_bytes", 10);
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("invalid partition specified: nowhere"));
    EXPECT_EQ(error.exit_code(), ExitCode::kScheduler);
  }
}

TEST_F(SlurmClient, ImpossibleMemoryIsRefusedInSlurmsWords) {
  try {
    run(slurm(1, ", job_mem: 900G"), "hundred_bytes", 10);
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sbatch: error"));
  }
}

TEST_F(SlurmClient, ACancelledJobIsReplacedAndCostsNothing) {
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

TEST_F(SlurmClient, AKilledWorkerIsReplaced) {
  RunReport report;
  bool killed = false;
  const auto results = run(slurm(2), "where", 600, &report, [&](std::uint64_t done) {
    if (done < 60 || killed) return;
    killed = true;
    const auto pids = worker_pids(folder_.path());
    ASSERT_FALSE(pids.empty());
    ::kill(pids.front(), SIGKILL);
  });
  ASSERT_TRUE(killed);
  EXPECT_EQ(std::count(results.begin(), results.end(), ""), 0);
  EXPECT_EQ(report.workers_lost, 1U);
}

TEST_F(SlurmClient, WorkersDrainBeforeTheWalltimeAndAreReplaced) {
  RunReport report;
  const auto results = run(settings(short_lived_block(2)), "where", 2000, &report);
  EXPECT_EQ(std::count(results.begin(), results.end(), ""), 0);
  EXPECT_EQ(report.workers_lost, 0U) << "leaving in order is no loss";
  EXPECT_GT(report.workers.size(), 2U);
}

TEST_F(SlurmClient, AnOutputFolderMayHaveBlanksAndQuotesInItsName) {
  const auto out = folder_.path() / "a folder's name";
  const auto run = map(block(2), out, 20, {"echo", "{}"}, false);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(num_ok(out), 20U);
}

TEST_F(SlurmClient, ADriverSaysWhyItsJobsWait) {
  const auto out = folder_.path() / "out";
  Process driver = start_map(block(2, ", job_extra_directives: ['--begin=now+1hour']"), out, 10,
                             {"echo"}, false);
  EXPECT_TRUE(eventually([&] {
    return tutti({"status", out.string()}).out.find("2 jobs wait: BeginTime") != std::string::npos;
  })) << tutti({"status", out.string()}).out;
  EXPECT_EQ(tutti({"cancel", out.string()}).exit_code, 0);
  EXPECT_EQ(end_of(driver, "the driver that was cancelled").exit_code, 85);
  EXPECT_TRUE(eventually([&] { return queue_is_empty(); })) << "jobs were left";
}

TEST_F(SlurmClient, CancelTakesWaitingJobsOutOfTheQueue) {
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
  EXPECT_TRUE(eventually([&] { return queue_is_empty(); }));
  EXPECT_EQ(tutti({"wait", out.string()}).exit_code, 85);
}

}  // namespace
}  // namespace tutti::parallel
