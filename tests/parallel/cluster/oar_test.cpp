// OAR itself: three nodes, jobs of an ordinary user (tests/beds/oar).
#include "tests/parallel/cluster/bed.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class Oar : public BedTest {
 protected:
  static void SetUpTestSuite() { bring_up("oar"); }
  static void TearDownTestSuite() { bring_down(); }
  static std::string block(int n_workers, const std::string& more = "",
                           const std::string& walltime = "'0:10:0'") {
    return "{env: oar, n_workers: " + std::to_string(n_workers) +
           ", options: {cores: 1, processes: 1, memory: 200MB, memory_per_core_property_name: "
           "not_applicable, resource_spec: '/nodes=1/resource_id=1', death_timeout: 10, "
           "walltime: " +
           walltime + more + "}}";
  }
  static std::vector<std::string> jobs() {
    return split_words(sh("oarstat | awk '$1 ~ /^[0-9]+$/ {print $1}'"));
  }
};

TEST_F(Oar, MapOfAThousandItemsInBothModes) {
  expect_local_bytes_in_both_modes(block(3));
  EXPECT_TRUE(eventually([] { return jobs().empty(); })) << sh("oarstat");
}

TEST_F(Oar, ARefusedSubmissionIsExitSixInItsWords) {
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    const auto run = map(block(2, ", queue: nowhere"), out, 10, {"echo"}, async);
    EXPECT_EQ(run.exit_code, 6) << run.err;
    EXPECT_THAT(run.err, HasSubstr("nowhere"));
    EXPECT_THAT(run.err, HasSubstr("oarsub"));
  }
}

TEST_F(Oar, OardelAndKillNineCostAnAsyncRunNothing) {
  const std::vector<std::string> command = {"sh", "-c", "sleep 0.05; echo {}"};
  const std::string expected = local_results(300, command);
  const auto out = folder_.path() / "async";
  ASSERT_EQ(map(block(3), out, 300, command, true).exit_code, 0);
  ASSERT_TRUE(eventually([&] { return num_ok(out) > 30 && jobs().size() == 3; }));
  sh("oardel " + jobs().front());
  const auto pids = split_words(sh("pgrep -f -- '--run " + out.string() + ".* --name'"));
  ASSERT_FALSE(pids.empty());
  sh("kill -9 " + pids.back());
  EXPECT_EQ(wait_for_results(out), expected);
  EXPECT_TRUE(eventually([] { return jobs().empty(); })) << sh("oarstat");
}

}  // namespace
}  // namespace tutti::parallel
