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
  Ssh() : BedTest("ssh") {}
  ParallelSettings ssh(int n_workers, const std::string& hosts = "[h1, h2, h3]",
                       const std::string& more = "") {
    return settings("{env: ssh, interface: tutbr0, n_workers: " + std::to_string(n_workers) +
                    ", options: {hosts: " + hosts + ", connect_options: {config: " +
                    (bed_ / "ssh_config").string() + ", keepalive_interval: 1}" + more + "}}");
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
  EXPECT_EQ(hosts, (std::set<std::string>{"h1", "h2", "h3"}));
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

}  // namespace
}  // namespace tutti::parallel
