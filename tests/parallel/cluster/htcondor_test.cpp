// HTCondor itself, in a Debian 13 chroot (tests/beds/htcondor); `tutti` runs in there too, as an
// ordinary user.
#include "tests/parallel/cluster/bed.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class HTCondor : public BedTest {
 protected:
  static void SetUpTestSuite() { bring_up("htcondor"); }
  static void TearDownTestSuite() { bring_down(); }
  static std::string block(int n_workers, const std::string& more = "") {
    return "{env: htcondor, n_workers: " + std::to_string(n_workers) +
           ", options: {cores: 1, processes: 1, memory: 200MB, disk: 10MB, death_timeout: 10, "
           "job_script_prologue: ['export LD_LIBRARY_PATH=" +
           (bed_ / "lib").string() + "']" + more + "}}";
  }
  static std::vector<std::string> running() {
    return split_words(
        sh((bed_ / "as-user").string() +
           " condor_q -constraint 'JobStatus == 2' -af ClusterId ProcId | sed 's/ /./'"));
  }
};

TEST_F(HTCondor, MapOfAThousandItemsInBothModes) { expect_local_bytes_in_both_modes(block(3)); }

TEST_F(HTCondor, ARefusedSubmissionIsExitSixInItsWords) {
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    const auto run =
        map(block(2, ", job_extra_directives: {Universe: nowhere}"), out, 10, {"echo"}, async);
    EXPECT_EQ(run.exit_code, 6) << run.err;
    EXPECT_THAT(run.err, HasSubstr("nowhere"));
    EXPECT_THAT(run.err, HasSubstr("condor_submit"));
  }
}

TEST_F(HTCondor, CondorRmAndKillNineCostAnAsyncRunNothing) {
  const std::vector<std::string> command = {"sh", "-c", "sleep 0.05; echo {}"};
  const std::string expected = local_results(300, command);
  const auto out = folder_.path() / "async";
  ASSERT_EQ(map(block(3), out, 300, command, true).exit_code, 0);
  ASSERT_TRUE(eventually([&] { return num_ok(out) > 30 && running().size() == 3; }));
  sh((bed_ / "as-user").string() + " condor_rm " + running().front());
  const auto pids = split_words(sh("pgrep -f -- '--run " + out.string() + ".* --name'"));
  ASSERT_FALSE(pids.empty());
  sh("kill -9 " + pids.back());
  EXPECT_EQ(wait_for_results(out), expected);
}

}  // namespace
}  // namespace tutti::parallel
