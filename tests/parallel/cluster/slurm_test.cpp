// Slurm itself: four virtual nodes with fake GPUs (tests/beds/slurm).
#include <set>

#include "tests/parallel/cluster/bed.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class Slurm : public BedTest {
 protected:
  Slurm() : BedTest("slurm") {}
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
  EXPECT_EQ(report.handed_again, 0U);
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

}  // namespace
}  // namespace tutti::parallel
