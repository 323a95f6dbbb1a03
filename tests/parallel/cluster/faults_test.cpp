// One table of faults over all beds (beds.h says how each is done where), in both modes. `-`: the
// scheduler has no such thing.
//
//                                   Slurm  Sge  Oar  HTCondor  Ssh  Pbs Moab Lsf (fakes)  Kube
//   1,000 items are local's bytes     x     x    x      x       x    x                     x
//   job cancelled, worker kill -9     x     x    x      x       2    x                     x
//   node down                         1     3    x      4       3    x                     x
//   driver kill -9                    x     x    x      x       x    x                     x
//   walltime shorter than the work    x     x    x      5       -    x                     -
//   walltime over before the start    -     x    x      -       -    x (not LSF)           -
//   requeue                           x     x    -      x       -    x                     -
//   wrong queue, account, memory      x     x    6      6       7    x                     8
//   four drivers at once              x     x    x      x       x    x                     x
//   query commands hang               x     x    x      x       9    x                     x
//   killed driver, next one at once   x     x    x      x       x    x                     x
//   the first three starts fail       x     x    x      x       x    x                     x
//
// 1 scontrol update state=down   2 no jobs: the worker only   3 the cable is pulled (Ssh: the power
// of another host too)   4 startd and all it had started are killed   5 a lifetime: HTCondor has no
// walltime   6 no accounts there   7 an unknown host   8 namespace, quantity, field   9 nobody is asked
// there: connections hang that are made anew
#include <signal.h>

#include <cstdlib>

#include "tests/parallel/cluster/beds.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

template <class Bed>
class Faults : public Bed {
 protected:
  // Items of 50 ms. Where the gate is closed, those from the 150th on wait for it: however slow the
  // scheduler's commands are, the run is not over before the test has done its deed.
  std::filesystem::path gate() const { return this->folder_.path() / "gate"; }
  void open_gate() const { write_file_atomic(gate(), ""); }
  std::vector<std::string> slow() const {
    return {"sh", "-c",
            "sleep 0.05; [ $0 -lt 150 ] || until [ -e '" + gate().string() +
                "' ]; do sleep 0.05; done; echo $0",
            "{}"};
  }
  std::string expected_of(int count) {
    open_gate();
    return this->local_results(count, slow());
  }
  // A run in the background that is past its start-up, and cannot end before the gate is open.
  struct Run {
    std::filesystem::path out;
    bool async = false;
    Process driver;
  };
  Run start(const std::string& block, int count, bool async, bool closed = true) {
    if (closed) std::filesystem::remove(gate());
    Run run{this->folder_.path() / (async ? "async" : "sync"), async, {}};
    run.driver = this->start_map(block, run.out, count, slow(), async);
    EXPECT_TRUE(this->eventually([&] { return this->num_ok(run.out) > 30; }, 120)) << story(run);
    return run;
  }
  // The results when it is over; what went wrong instead of them.
  std::string finish(Run& run) {
    open_gate();
    const auto status = this->end_of(run.driver, "the driver, with the gate open,");
    if (!status.ok()) return status.describe() + story(run);
    return this->wait_for_results(run.out);
  }
  std::string story(const Run& run) {
    return "\n" + read_file(run.out.string() + ".log") +
           (std::filesystem::exists(run.out / "logs") ? this->worker_logs(run.out) : "");
  }
  void expect_nothing_runs(const Run& run) {
    EXPECT_TRUE(this->eventually([&] { return this->queue_is_empty(); })) << "jobs were left";
    EXPECT_TRUE(this->eventually([&] { return this->worker_pids(run.out).empty(); }))
        << "workers were left";
  }
};

struct BedNames {
  template <class Bed>
  static std::string GetName(int) {
    const std::string name = testing::internal::GetTypeName<Bed>();
    return name.substr(name.rfind(':') + 1);
  }
};
using Beds = testing::Types<Slurm, Sge, Oar, HTCondor, Ssh, FakePbs, FakeMoab, FakeLsf, Kube>;
TYPED_TEST_SUITE(Faults, Beds, BedNames);

TYPED_TEST(Faults, AThousandItemsGiveTheBytesOfALocalRun) {
  const std::vector<std::string> command = {"printf", "item %s", "{}"};
  const std::string expected = this->local_results(1000, command);
  for (const bool async : {false, true}) {
    const auto out = this->folder_.path() / (async ? "async" : "sync");
    const auto run = this->map(this->block(4), out, 1000, command, async);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(this->wait_for_results(out), expected);
    this->expect_nothing_runs({out, async, {}});
  }
}

TYPED_TEST(Faults, ACancelledJobAndAKilledWorkerCostNothing) {
  const std::string expected = this->expected_of(300);
  for (const bool async : {false, true}) {
    auto run = this->start(this->block(3), 300, async);
    if (const std::string line = this->cancel_line("X"); !line.empty()) {
      std::vector<std::string> jobs;
      ASSERT_TRUE(this->eventually([&] { return (jobs = this->running_jobs()).size() >= 2; }));
      this->sh(this->cancel_line("'" + jobs.front() + "'"));
      ASSERT_TRUE(this->eventually([&] { return this->num_ok(run.out) > 90; })) << this->story(run);
    }
    const auto workers = this->worker_pids(run.out);
    ASSERT_FALSE(workers.empty());
    ::kill(workers.back(), SIGKILL);
    EXPECT_EQ(this->finish(run), expected);
    this->expect_nothing_runs(run);
  }
}

TYPED_TEST(Faults, ANodeThatGoesDownCostsNothing) {
  const std::string expected = this->expected_of(300);
  for (const bool async : {false, true}) {
    auto run = this->start(this->spread_block(3), 300, async);
    EXPECT_TRUE(this->eventually([&] { return this->worker_pids(run.out).size() >= 3; }));
    const auto bring_back = this->take_a_node_down(run.out);
    ASSERT_TRUE(bring_back);
    EXPECT_EQ(this->finish(run), expected);
    bring_back();
    this->expect_nothing_runs(run);
  }
}

TYPED_TEST(Faults, AKilledDriverIsResumedOrNotMissed) {
  const std::string expected = this->expected_of(300);
  for (const bool async : {false, true}) {
    auto run = this->start(this->block(3), 300, async);
    // With whatever is around it: the wrappers that make it another user's.
    for (const pid_t pid : this->processes_with({" map ", "--output_dir " + run.out.string()}))
      ::kill(pid, SIGKILL);
    run.driver.wait();
    this->open_gate();
    if (async) {
      EXPECT_EQ(this->wait_for_results(run.out), expected);
    } else {
      this->expect_nothing_runs(run);          // they leave by themselves
      EXPECT_LT(this->num_ok(run.out), 300U);  // nobody was there to take their results
      const auto resumed = this->map(this->block(2), run.out, 300, this->slow(), false);
      EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
      EXPECT_EQ(read_file(run.out / "results.jsonl"), expected);
    }
    this->expect_nothing_runs(run);
  }
}

TYPED_TEST(Faults, WorkersLeaveBeforeTheirTimeIsUpAndAreReplaced) {
  const std::string block = this->short_lived_block(2);
  if (block.empty()) GTEST_SKIP() << "no time limits here";
  const std::string expected = this->expected_of(700);
  for (const bool async : {false, true}) {
    auto run = this->start(block, 700, async, false);
    EXPECT_EQ(this->finish(run), expected);
    const std::string logs = this->worker_logs(run.out);
    EXPECT_THAT(logs, HasSubstr("time is nearly up")) << "nobody had to leave";
    EXPECT_EQ(logs.find("strike"), std::string::npos) << logs;
    EXPECT_EQ(this->sh("cat " + run.out.string() + ".log").find("strike"), std::string::npos);
    this->expect_nothing_runs(run);
  }
}

// A login profile that waits for a lock: each job's time is up before its worker begins.
TYPED_TEST(Faults, JobsThatEndBeforeTheirWorkersBeginEndTheRun) {
  const std::string block = this->stillborn_block(1);
  if (block.empty()) GTEST_SKIP() << "no walltimes of seconds here";
  for (const bool async : {false, true}) {
    const auto out = this->folder_.path() / (async ? "async" : "sync");
    auto run = this->map(block, out, 10, {"echo", "{}"}, async);
    if (async) {
      ASSERT_EQ(run.exit_code, 0) << run.err;
      run = this->tutti({"wait", out.string()});
    }
    EXPECT_EQ(run.exit_code, 6) << run.out << run.err;
    EXPECT_THAT(run.err, HasSubstr(async ? "a job ended before its worker was ready"
                                         : "no worker came up, 3 starts of workers failed"));
    EXPECT_THAT(run.err, HasSubstr("login profile"));
    this->expect_nothing_runs({out, async, {}});
  }
}

TYPED_TEST(Faults, ARequeuedJobComesBackAsANewWorker) {
  if (this->requeue_line("X").empty()) GTEST_SKIP() << "jobs cannot be requeued here";
  const std::string expected = this->expected_of(300);
  for (const bool async : {false, true}) {
    auto run = this->start(this->block(2), 300, async);
    std::vector<std::string> jobs;
    ASSERT_TRUE(this->eventually([&] { return (jobs = this->running_jobs()).size() == 2; }));
    this->sh(this->requeue_line("'" + jobs.front() + "'"));
    this->open_gate();
    // Sooner, Slurm's nodes refuse it: credential revoked.
    const auto soonest = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    EXPECT_TRUE(this->eventually([&] {
      if (std::chrono::steady_clock::now() > soonest) this->hurry(jobs.front());
      const auto now = this->running_jobs();
      return this->num_ok(run.out) == 300 ||
             std::find(now.begin(), now.end(), jobs.front()) != now.end();
    }));
    EXPECT_EQ(this->finish(run), expected);
    // A job that came back when all was done ends by itself, or with the driver.
    EXPECT_TRUE(this->eventually([&] {
      this->hurry(jobs.front());
      return this->queue_is_empty();
    })) << "jobs were left";
    this->expect_nothing_runs(run);
  }
}

TYPED_TEST(Faults, ARefusedSubmissionIsExitSixInTheSchedulersWords) {
  int number = 0;
  for (const Refusal& refusal : this->refusals())
    for (const bool async : {false, true}) {
      const auto out = this->folder_.path() / ("refused-" + std::to_string(number++));
      const auto run = this->map(this->block(2, refusal.options), out, 10, {"echo"}, async);
      EXPECT_EQ(run.exit_code, 6) << refusal.options << run.out << run.err;
      EXPECT_THAT(run.err, HasSubstr(refusal.words));
      EXPECT_TRUE(this->worker_pids(out).empty());
    }
  EXPECT_TRUE(this->eventually([&] { return this->queue_is_empty(); })) << "jobs were left";
}

TYPED_TEST(Faults, FourDriversOfBothKindsAtOnce) {
  const std::vector<std::string> command = {"printf", "item %s", "{}"};
  const std::string expected = this->local_results(300, command);
  std::vector<std::filesystem::path> outs;
  std::vector<Process> drivers;
  for (int d = 0; d < 4; ++d) {
    outs.push_back(this->folder_.path() / ("run-" + std::to_string(d)));
    drivers.push_back(this->start_map(this->block(2), outs.back(), 300, command, d % 2 == 1));
  }
  for (std::size_t d = 0; d < drivers.size(); ++d) {
    EXPECT_TRUE(this->end_of(drivers[d], "driver " + std::to_string(d)).ok())
        << read_file(outs[d].string() + ".log");
    EXPECT_EQ(this->wait_for_results(outs[d]), expected);
    this->expect_nothing_runs({outs[d], d % 2 == 1, {}});
  }
}

TYPED_TEST(Faults, QueriesThatHangCostNothingButNewWorkers) {
  const auto shims = this->folder_.path() / "shims";
  make_folders(shims);
  this->sh("chmod 777 " + shims.string());  // the driver may be another user's
  const std::string path = std::getenv("PATH");
  for (const std::string& name : this->query_commands())
    write_file_atomic(
        shims / name,
        "#!/bin/sh\ncase \"$*\" in " + this->query_pattern() + ") [ ! -e " +
            (shims / "hang").string() + " ] || { touch " + (shims / "hangs").string() +
            "; exec sleep 1000; };; esac\nPATH=${PATH#*:}; exec " + name + " \"$@\"\n",
        0755);
  ::setenv("PATH", (shims.string() + ":" + path).c_str(), 1);
  ::setenv("TUTTI_BED_SHIMS", shims.c_str(), 1);
  const std::string expected = this->expected_of(160);
  auto run = this->start(this->block(3), 160, false);  // few wait for the gate
  write_file_atomic(shims / "hang", "");
  this->provoke_a_query(run.out);
  EXPECT_TRUE(this->eventually([&] { return std::filesystem::exists(shims / "hangs"); }, 120));
  this->open_gate();
  const auto ended = run.driver.wait_for(std::chrono::seconds(50));
  std::filesystem::remove(shims / "hang");
  ::setenv("PATH", path.c_str(), 1);
  ::unsetenv("TUTTI_BED_SHIMS");
  ASSERT_TRUE(ended) << "the driver waits for its scheduler" << this->story(run);
  EXPECT_EQ(this->finish(run), expected);
  EXPECT_EQ(this->story(run).find("no word from the driver"), std::string::npos);
  this->expect_nothing_runs(run);
}

// Workers of the first life are refused, cancelled, or leave; the second one has its own.
TYPED_TEST(Faults, TheNextDriverDoesNotWaitForTheOrphansOfAKilledOne) {
  const std::string expected = this->expected_of(300);
  auto run = this->start(this->block(3), 300, false);
  for (const pid_t pid : this->processes_with({" map ", "--output_dir " + run.out.string()}))
    ::kill(pid, SIGKILL);
  run.driver.wait();
  this->open_gate();
  const auto next = this->map(this->block(2), run.out, 300, this->slow(), false);
  EXPECT_EQ(next.exit_code, 0) << next.err;
  EXPECT_EQ(read_file(run.out / "results.jsonl"), expected);
  this->expect_nothing_runs(run);
}

TYPED_TEST(Faults, BrokenNodesAreNoReasonToGiveUp) {
  const std::string broken = (this->folder_.path() / "broken").string();
  const std::string block = this->prologue_block(
      4, "for i in 1 2 3; do mkdir " + broken + "-$i 2>/dev/null && exit 7; done; true");
  const std::string expected = this->expected_of(100);
  const auto out = this->folder_.path() / "out";
  const auto run = this->map(block, out, 100, this->slow(), false);
  EXPECT_EQ(run.exit_code, 0) << run.err << this->worker_logs(out);
  EXPECT_TRUE(std::filesystem::exists(broken + "-3")) << "nothing was broken";
  EXPECT_EQ(read_file(out / "results.jsonl"), expected);
  this->expect_nothing_runs({out, false, {}});
}

}  // namespace
}  // namespace tutti::parallel
