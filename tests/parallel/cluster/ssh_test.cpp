// The client's view of OpenSSH: three hosts that can be powered off and cut off (tests/beds/ssh).
#include <set>

#include "tests/parallel/cluster/beds.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

class SshClient : public Ssh {
 protected:
  ParallelSettings ssh(int n_workers, const std::string& more = "") {
    return settings(block(n_workers, more));
  }
  int workers_left() {
    return static_cast<int>(processes_with({"worker --run " + folder_.path().string()}).size());
  }
};

TEST_F(SshClient, AThousandItemsGiveTheBytesOfALocalRunAndNothingStays) {
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

TEST_F(SshClient, AHostThatIsPoweredOffLosesNoItem) {
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
  bring_up_again();
}

TEST_F(SshClient, AnUnknownHostIsNamed) {
  try {
    run(ssh(1, ", hosts: [nosuchhost.invalid], connect_retries: 0"), "hundred_bytes", 10);
    FAIL() << "accepted";
  } catch (const SchedulerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nosuchhost.invalid"));
  }
}

}  // namespace
}  // namespace tutti::parallel
