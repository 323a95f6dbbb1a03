// PBS, Moab and LSF as strict fakes (tests/beds/fake): they read the script as the real ones do,
// run it for real, and misbehave on request.
#include "tests/parallel/cluster/bed.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class Fake : public BedTest {
 protected:
  static std::string block(int n_workers, const std::string& more = "",
                           const std::string& walltime = "30m") {
    return "{env: " + env_ + ", n_workers: " + std::to_string(n_workers) +
           ", options: {cores: 1, processes: 1, memory: 200MB, walltime: " + walltime +
           ", death_timeout: 10" + more + "}}";
  }
  // How the scheduler behaves from now on.
  static void conduct(const Json& how) {
    sh("rm -f " + (bed_ / "submitted").string() + " " + (bed_ / "queries").string() + " " +
       (bed_ / "preempted").string());
    write_file_atomic(bed_ / "conduct.json", how.dump());
  }
  void TearDown() override {
    BedTest::TearDown();
    if (!IsSkipped()) conduct(Json::object());
  }
  void expect_refused(const std::string& more, const std::string& words) {
    for (const bool async : {false, true}) {
      const auto out = folder_.path() / ("refused-" + std::to_string(next_run_++));
      const auto run = map(block(2, more), out, 10, {"echo"}, async);
      EXPECT_EQ(run.exit_code, 6) << run.err;
      EXPECT_THAT(run.err, HasSubstr(words));
    }
  }
  // Both modes under bad conduct give the bytes of a local run.
  void expect_same_under(const Json& how, int count, const std::string& config) {
    const std::vector<std::string> command = {"sh", "-c", "sleep 0.05; echo {}"};
    const std::string expected = local_results(count, command);
    for (const bool async : {false, true}) {
      conduct(how);
      const auto out = folder_.path() / ("run-" + std::to_string(next_run_++));
      const auto run = map(config, out, count, command, async);
      ASSERT_EQ(run.exit_code, 0) << run.err;
      EXPECT_EQ(wait_for_results(out), expected) << how.dump();
      const std::string logs = sh("cat " + (out / "logs").string() + "/worker-*.log");
      EXPECT_EQ(logs.find("strikes"), std::string::npos) << logs;
    }
  }
  void expect_misbehaviour_is_survived() {
    expect_same_under({{"lag_s", 3}, {"banner", true}, {"bad_json", true}, {"fail_queries", 2}},
                      100, block(3));
    expect_same_under({{"preempt_s", 2}, {"preempt_times", 2}}, 150, block(3));
  }
  static std::string env_;
};
std::string Fake::env_;

class FakePbs : public Fake {
 protected:
  static void SetUpTestSuite() { bring_up("fake_pbs"), env_ = "pbs"; }
  static void TearDownTestSuite() { bring_down(); }
};
class FakeMoab : public Fake {
 protected:
  static void SetUpTestSuite() { bring_up("fake_moab"), env_ = "moab"; }
  static void TearDownTestSuite() { bring_down(); }
};
class FakeLsf : public Fake {
 protected:
  static void SetUpTestSuite() { bring_up("fake_lsf"), env_ = "lsf"; }
  static void TearDownTestSuite() { bring_down(); }
};

TEST_F(FakePbs, MapOfAThousandItemsInBothModes) { expect_local_bytes_in_both_modes(block(3)); }
TEST_F(FakePbs, RefusalsAreExitSixInItsWords) {
  expect_refused(", queue: nowhere", "Unknown queue");
  expect_refused(", account: nobody", "Invalid account");
  expect_refused(", resource_spec: 'select=1:ncpus=1:mem=900GB'", "resource limits");
}
TEST_F(FakePbs, LagOddAnswersFailingQueriesAndPreemptionAreSurvived) {
  expect_misbehaviour_is_survived();
}
TEST_F(FakePbs, WorkersLeaveBeforeTheWalltimeAndAreReplaced) {
  expect_same_under(Json::object(), 250, block(2, ", drain_margin: 3", "'00:00:08'"));
}
TEST_F(FakePbs, KeysTravelInTheEnvironmentWhenAsked) {
  const auto out = folder_.path() / "out";
  const std::string hide = "rm -f " + (out / ".tutti" / "connect.json").string();
  const std::string keys = ", export_keys: true, job_script_prologue: ['" + hide + "']";
  const auto run = map(block(2, keys), out, 20, {"sh", "-c", "echo ${TUTTI_CONNECT:-none}"}, false);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string results = read_file(out / "results.jsonl");
  EXPECT_THAT(results, HasSubstr("\"result\":\"none\"")) << "items must not see the keys";
  EXPECT_EQ(sh("grep -c worker_secret " + (out / "scripts").string() + "/*"), "0");
}
TEST_F(FakePbs, ALostJobIsReplaced) {
  // It is known to nobody: after some seconds the driver believes it and asks for another.
  conduct({{"lose", 1}});
  const auto out = folder_.path() / "out";
  const auto run = map(block(1), out, 20, {"echo", "{}"}, false);
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(FakeMoab, MapOfAThousandItemsInBothModes) { expect_local_bytes_in_both_modes(block(3)); }
TEST_F(FakeMoab, RefusalsAreExitSixInItsWords) {
  expect_refused(", queue: nowhere", "Unknown queue");
  expect_refused(", account: nobody", "Invalid account");
}
TEST_F(FakeMoab, LagOddAnswersFailingQueriesAndPreemptionAreSurvived) {
  expect_misbehaviour_is_survived();
}

TEST_F(FakeLsf, MapOfAThousandItemsInBothModes) { expect_local_bytes_in_both_modes(block(3)); }
TEST_F(FakeLsf, RefusalsAreExitSixInItsWords) {
  expect_refused(", queue: nowhere", "No such queue");
  expect_refused(", project: nobody", "not valid");
  expect_refused(", mem: 900GB", "MEMLIMIT");
}
TEST_F(FakeLsf, LagOddAnswersFailingQueriesAndPreemptionAreSurvived) {
  expect_misbehaviour_is_survived();
}

}  // namespace
}  // namespace tutti::parallel
