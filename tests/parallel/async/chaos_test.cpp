// Deaths at random moments without a driver; the results must be the bytes of a quiet run.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/parallel/async/run.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using namespace trial;

constexpr std::uint64_t kAsyncItems = 300;

class AsyncChaos : public ::testing::Test {
 protected:
  void SetUp() override {
    drive(folder_.path() / "quiet", 2);
    expected_ = read_file(folder_.path() / "quiet" / "results.jsonl");
  }
  fs::path submit(const std::string& name, int n_workers) {
    const fs::path out = folder_.path() / name;
    RunFolder folder(out, {{"function", "one_millisecond"}}, range(kAsyncItems), {});
    JobSpec job;
    job.function = "one_millisecond";
    submit_async(folder, local(n_workers), job, range(kAsyncItems), {},
                 {.beat_s = 0.05, .stale_s = 0.5});
    return out;
  }
  static std::vector<pid_t> alive(const fs::path& out) {
    std::vector<pid_t> pids;
    const auto state =
        async_state(out, false);  // a loop over a member of a temporary would outlive it
    for (const WorkerNote& note : state->workers)
      pids.push_back(static_cast<pid_t>(note.process.pid));
    return pids;
  }
  void expect_same(const fs::path& out, const std::string& what) {
    ASSERT_TRUE(wait_until([&] { return async_state(out, false)->state == "done"; })) << what;
    ASSERT_EQ(read_file(out / "results.jsonl"), expected_) << what;
    ASSERT_TRUE(wait_until([&] {
      return alive(out).empty() && !async_state(out, false)->coming_back;
    })) << what;
  }

  TempFolder folder_{"async-chaos"};
  std::string expected_;
};

TEST_F(AsyncChaos, KilledWorkersChangeNothing) {
  int killed = 0;
  for (std::uint64_t round = 0; round < 25; ++round) {
    Random random({round, 11});
    const fs::path out = submit("kill-" + std::to_string(round), 3);
    for (int time = 0; time < 2; ++time) {
      const std::uint64_t when = random.below(kAsyncItems);
      ASSERT_TRUE(wait_until(
          [&] { return count_items(out).ok >= when || async_state(out, false)->state == "done"; }));
      const auto pids = alive(out);
      if (!pids.empty()) killed += ::kill(pids[random.below(pids.size())], SIGKILL) == 0 ? 1 : 0;
    }
    expect_same(out, "round " + std::to_string(round));
  }
  EXPECT_GT(killed, 20);
}

TEST_F(AsyncChaos, StoppedWorkersLoseTheirClaimsAndWhatTheyBringLaterIsDropped) {
  int stopped = 0;
  for (std::uint64_t round = 0; round < 5; ++round) {
    Random random({round, 12});
    const fs::path out = submit("stop-" + std::to_string(round), 3);
    ASSERT_TRUE(wait_until([&] { return count_items(out).ok >= 20 + random.below(200); }));
    const auto pids = alive(out);
    if (pids.empty()) continue;
    const pid_t pid = pids[random.below(pids.size())];
    stopped += ::kill(pid, SIGSTOP) == 0 ? 1 : 0;
    ASSERT_TRUE(wait_until([&] { return async_state(out, false)->state == "done"; }));
    ASSERT_EQ(read_file(out / "results.jsonl"), expected_);
    ::kill(pid, SIGCONT);  // it wakes, finds its claim gone and the run over, and leaves
    ASSERT_TRUE(wait_until([&] { return alive(out).empty(); }));
    // Late records may be in its journal; they do not count.
    write_async_results(out, AsyncJob::read(async_folder(out)));
    expect_same(out, "round " + std::to_string(round));
  }
  EXPECT_GT(stopped, 2);
}

TEST_F(AsyncChaos, AKilledMergerIsReplaced) {
  int caught = 0;
  for (std::uint64_t round = 0; round < 10; ++round) {
    const fs::path out = submit("merge-" + std::to_string(round), 3);
    // The merger is the one that holds the last chain.
    const std::size_t chain = AsyncJob::read(async_folder(out)).pieces.size();
    ClaimBoard board(async_folder(out), chain + 1);
    ASSERT_TRUE(wait_until([&] {
      board.refresh();
      return board.length(chain) > 0;
    }));
    const auto note = read_worker_note(async_folder(out), board.chain(chain)[0].worker);
    if (note) caught += ::kill(static_cast<pid_t>(note->process.pid), SIGKILL) == 0 ? 1 : 0;
    expect_same(out, "round " + std::to_string(round));
  }
  EXPECT_GT(caught, 0);
}

TEST_F(AsyncChaos, AllKilledAtOnceTheFolderSaysSoAndResumes) {
  const fs::path out = submit("all", 2);
  // Both: one that begins later would not be killed.
  ASSERT_TRUE(wait_until([&] { return alive(out).size() == 2 && count_items(out).ok >= 50; }));
  // Supervisors first (the parents), so that nobody is started again.
  for (const pid_t pid : alive(out)) {
    if (const pid_t parent = parent_of(pid); parent > 1) ::kill(parent, SIGKILL);
  }
  ASSERT_TRUE(wait_until([&] { return alive(out).empty(); }));
  EXPECT_EQ(async_state(out, false)->state, "died");
  drive(out, 2);
  EXPECT_EQ(read_file(out / "results.jsonl"), expected_);
}

}  // namespace
}  // namespace tutti::parallel
