// Grid Engine itself: three hosts in namespaces (tests/beds/sge).
#include "tests/parallel/cluster/bed.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kSgeItem = {"sh", "-c", "sleep 0.05; echo {}"};

class Sge : public BedTest {
 protected:
  static void SetUpTestSuite() { bring_up("sge"); }
  static void TearDownTestSuite() { bring_down(); }
  static std::string block(int n_workers, const std::string& more = "",
                           const std::string& walltime = "30m") {
    return "{env: sge, interface: tutgbr0, n_workers: " + std::to_string(n_workers) +
           ", options: {cores: 1, processes: 1, memory: 200MB, memory_resource: '', "
           "death_timeout: 10, job_script_prologue: ['. " +
           (bed_ / "env.sh").string() + "'], walltime: " + walltime + more + "}}";
  }
  static bool queue_is_empty() { return sh("qstat -u '*'").empty(); }
};

TEST_F(Sge, MapOfAThousandItemsInBothModes) {
  expect_local_bytes_in_both_modes(block(4));
  EXPECT_TRUE(eventually(queue_is_empty)) << sh("qstat -u '*'");
}

TEST_F(Sge, ARefusedSubmissionIsExitSixInItsWords) {
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    const auto run = map(block(2, ", queue: nowhere.q"), out, 10, {"echo"}, async);
    EXPECT_EQ(run.exit_code, 6) << run.err;
    EXPECT_THAT(run.err, HasSubstr("nowhere.q"));
    EXPECT_THAT(run.err, HasSubstr("qsub"));
  }
}

TEST_F(Sge, QdelAndKillNineCostNothingInEitherMode) {
  const std::string expected = local_results(300, kSgeItem);
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    auto words = map_words(block(3), out, 300, kSgeItem, async);
    words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
    Process driver = Process::start({.argv = words, .stdout_path = folder_.path() / "log"});
    ASSERT_TRUE(eventually([&] { return num_ok(out) > 30; }))
        << read_file(folder_.path() / "log") << sh("qstat -u '*'; cat " + out.string() + "/logs/*");
    const auto running =
        split_words(sh("qstat -s r -u '*' | awk 'NR>2{print $1 \".\" $NF; exit}'"));
    ASSERT_FALSE(running.empty());
    sh("qdel " + running[0]);
    const auto pids = split_words(sh("pgrep -f -- 'worker --run " + out.string() + "'"));
    ASSERT_FALSE(pids.empty());
    sh("kill -9 " + pids.back());
    if (!async) {
      EXPECT_EQ(driver.wait().exit_code, 0) << read_file(folder_.path() / "log");
    }
    EXPECT_EQ(wait_for_results(out), expected);
    EXPECT_TRUE(eventually(queue_is_empty)) << sh("qstat -u '*'");
  }
}

TEST_F(Sge, WorkersLeaveBeforeTheWalltimeAndAreReplaced) {
  const std::string expected = local_results(300, kSgeItem);
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    const auto run = map(block(2, ", drain_margin: 5", "'00:00:12'"), out, 300, kSgeItem, async);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(wait_for_results(out), expected);
    EXPECT_EQ(sh("cat " + (out / "logs").string() + "/worker-*.log").find("strikes"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace tutti::parallel
