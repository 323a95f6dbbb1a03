// OpenSSH itself: three hosts in namespaces that can be powered off and cut off (tests/beds/ssh).
#include <set>

#include "tests/parallel/cluster/bed.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class Ssh : public BedTest {
 protected:
  static void SetUpTestSuite() { bring_up("ssh"); }
  static void TearDownTestSuite() { bring_down(); }
  ParallelSettings ssh(int n_workers, const std::string& hosts = "[h1, h2, h3]",
                       const std::string& more = "") {
    return settings("{env: ssh, interface: tutbr0, n_workers: " + std::to_string(n_workers) +
                    ", options: {hosts: " + hosts + ", connect_options: {config: " +
                    (bed_ / "ssh_config").string() + ", keepalive_interval: 1}" + more + "}}");
  }
  std::string block() const {
    return "{env: ssh, interface: tutbr0, n_workers: 6, options: {hosts: [h1, h2, h3], "
           "connect_options: {config: " +
           (bed_ / "ssh_config").string() + ", keepalive_interval: 1}}}";
  }
  int workers_left() {
    return static_cast<int>(
        split_words(sh("pgrep -f 'worker --run " + folder_.path().string() + "'")).size());
  }
};

TEST_F(Ssh, AThousandItemsGiveTheBytesOfALocalRunAndNothingStays) {
  RunReport report;
  const auto here = run(settings("{env: local, n_workers: 2}"), "hundred_bytes", 1000);
  EXPECT_EQ(run(ssh(6), "hundred_bytes", 1000, &report), here);
  std::set<std::string> hosts;
  for (const auto& worker : report.workers) hosts.insert(worker.host);
  hosts.erase("");  // one that came up when all was done
  EXPECT_GT(hosts.size(), 1U);
  for (const auto& host : hosts) EXPECT_TRUE(host == "h1" || host == "h2" || host == "h3") << host;
  EXPECT_TRUE(eventually([&] { return workers_left() == 0; }));
}

TEST_F(Ssh, AHostThatIsPoweredOffLosesNoItem) {
  RunReport report;
  bool off = false;
  const auto results = run(ssh(3), "where", 600, &report, [&](std::uint64_t done) {
    if (done < 60 || off) return;
    off = true;
    sh("kill -9 $(cat " + (bed_ / "run/h2.pid").string() + ")");
  });
  ASSERT_TRUE(off);
  EXPECT_EQ(std::count(results.begin(), results.end(), ""), 0);
  EXPECT_EQ(report.failed, 0U);
  EXPECT_TRUE(eventually([&] { return workers_left() == 0; }));
}

TEST_F(Ssh, AnUnknownHostIsNamed) {
  try {
    run(ssh(1, "[nosuchhost.invalid]", ", connect_retries: 0"), "hundred_bytes", 10);
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nosuchhost.invalid"));
  }
}

TEST_F(Ssh, MapOfAThousandItemsInBothModes) { expect_local_bytes_in_both_modes(block()); }

TEST_F(Ssh, HostsThatAreOffOrCutOffCostAnAsyncRunNothing) {
  const std::vector<std::string> command = {"sh", "-c", "sleep 0.05; echo {}"};
  const std::string expected = local_results(300, command);
  const auto out = folder_.path() / "async";
  ASSERT_EQ(map(block(), out, 300, command, true).exit_code, 0);
  ASSERT_TRUE(eventually([&] { return num_ok(out) > 40; }));
  sh("kill -9 $(cat " + (bed_ / "run/h2.pid").string() + ")");
  sh("ip link set tutv3 down");  // its workers see the folder still, and go on
  EXPECT_EQ(wait_for_results(out), expected);
  sh("ip link set tutv3 up; BED=" + bed_.string() + " " + TUTTI_SOURCE_DIR "/tests/beds/ssh/up.sh");
}

TEST_F(Ssh, AnUnreachableHostIsExitSixInSshsWords) {
  for (const bool async : {false, true}) {
    const auto out = folder_.path() / (async ? "async" : "sync");
    const auto run =
        map("{env: ssh, n_workers: 1, options: {hosts: [nosuchhost.invalid], "
            "connect_retries: 0}}",
            out, 10, {"echo"}, async);
    EXPECT_EQ(run.exit_code, 6) << run.err;
    EXPECT_THAT(run.err, HasSubstr("nosuchhost.invalid"));
  }
}

}  // namespace
}  // namespace tutti::parallel
