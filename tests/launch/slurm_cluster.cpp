// Under a real Slurm: `srun` with one task per rank and per node, a batch script without srun, and
// a requeued job. Needs SLURM_CONF (or a system Slurm) with two idle nodes and a folder both see;
// skips with the reason otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/beds/slurm_nodes.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

const std::string kProbe = in_bin("launch_probe");

CommandResult run(std::vector<std::string> argv, std::map<std::string, std::string> env = {}) {
  return run_command({.argv = std::move(argv), .env = std::move(env), .timeout = 200s});
}

class Slurm : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_slurm(2); !why.empty()) GTEST_SKIP() << why;
  }
  std::string done(int rank) const {
    const auto path = folder_.path() / ("rank-" + std::to_string(rank) + ".done");
    return std::filesystem::exists(path) ? read_file(path)
                                         : "rank " + std::to_string(rank) + " did not finish";
  }
  // Submits a script and waits for its end; returns what it printed.
  std::string batch(const std::vector<std::string>& options, const std::string& script) {
    write_file_atomic(folder_.path() / "job.sh", "#!/bin/bash\n" + script + "\n", 0755);
    const auto out = folder_.path() / "job.out";
    std::vector<std::string> argv = {"sbatch", "--wait", "-o", out};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.push_back(folder_.path() / "job.sh");
    const auto result = run(argv);
    return (std::filesystem::exists(out) ? read_file(out) : "") + result.err;
  }
  TempFolder folder_;
};

TEST_F(Slurm, OneTaskPerRank) {
  const auto result =
      run({"srun", "-N2", "-n4", "--ntasks-per-node=2", kProbe, folder_.path(), "50"},
          {{"PROBE_DEVICES", "2"}, {"PROBE_NODES", "2"}});
  EXPECT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(done(3), "4 1 1 2 0 srun");
}

TEST_F(Slurm, OneTaskPerNode) {
  const auto result =
      run({"srun", "-N2", "-n2", kProbe, folder_.path(), "50"}, {{"PROBE_DEVICES", "2"}});
  EXPECT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(done(3), "4 1 1 2 0 srun, one task per node");
}

TEST_F(Slurm, MismatchShowsBothNumbers) {
  const auto result =
      run({"srun", "-N2", "-n4", "--ntasks-per-node=2", kProbe, folder_.path(), "50"},
          {{"PROBE_DEVICES", "3"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("devices: got 3, but srun started 2 task(s)"));
}

TEST_F(Slurm, KilledRankIsNamedOnAllNodes) {
  const auto result = run({"srun", "-N2", "-n4", "--ntasks-per-node=2", kProbe, folder_.path(),
                           "1000000", "kill", "3", "20"});
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 3 ("), HasSubstr("died")));
}

TEST_F(Slurm, BatchScriptWithoutSrunStartsTheStep) {
  const std::string script =
      "export PROBE_DEVICES=2 PROBE_NODES=2\n" + kProbe + " " + folder_.path().string() + " 50";
  const std::string text = batch({"-N2", "--ntasks-per-node=2"}, script);
  EXPECT_THAT(text, HasSubstr("srun --nodes=2 --ntasks=4 --ntasks-per-node=2"));
  EXPECT_EQ(done(3), "4 1 1 2 0 srun") << text;
  std::filesystem::remove(folder_.path() / "rank-3.done");
  const std::string again = batch({"-N2", "--ntasks-per-node=1"}, script);
  EXPECT_EQ(done(3), "4 1 1 2 0 srun, one task per node") << again;
}

TEST_F(Slurm, RequeuedJobMeetsAgainAndCountsItsRestart) {
  // The first life never ends by itself; the second is short.
  const std::string probe = kProbe + " " + folder_.path().string();
  write_file_atomic(folder_.path() / "job.sh",
                    "#!/bin/bash\nexport PROBE_DEVICES=2 PROBE_NODES=2\n"
                    "if [ \"${SLURM_RESTART_COUNT:-0}\" = 0 ]; then exec " +
                        probe + " 100000000; fi\nexec " + probe + " 50\n",
                    0755);
  const auto submitted =
      run({"sbatch", "--parsable", "--requeue", "-N2", "--ntasks-per-node=2", "--open-mode=append",
           "-o", folder_.path() / "job.out", folder_.path() / "job.sh"});
  ASSERT_TRUE(submitted.ok()) << submitted.describe();
  const std::string job(trim(submitted.out));
  const auto wait_for = [&](const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 150s;
    while (!condition() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(200ms);
    return condition();
  };
  ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(folder_.path() / "rank-3.pid"); }));
  ASSERT_TRUE(run({"scontrol", "requeue", job}).ok());
  // Slurm makes a requeued job wait two minutes unless told otherwise, again and again; but one
  // that starts in the second in which it was stopped is refused by its nodes (credential revoked).
  const auto soonest = std::chrono::steady_clock::now() + 3s;
  const bool finished = wait_for([&] {
    if (std::chrono::steady_clock::now() > soonest)
      run({"scontrol", "update", "jobid=" + job, "StartTime=now"});
    return std::filesystem::exists(folder_.path() / "rank-3.done");
  });
  if (!finished) run({"scancel", job});
  ASSERT_TRUE(finished) << read_file(folder_.path() / "job.out");
  EXPECT_EQ(done(3), "4 1 1 2 1 srun");
}

}  // namespace
}  // namespace tutti::launch
