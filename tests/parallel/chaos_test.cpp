// What takes long. Deaths at random moments, many times: the results must be the same bytes as of a
// quiet run. Many items, and a large one.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/parallel/items.h"
#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/subprocess.h"
#include "tutti/parallel/run/folder_run.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using namespace trial;

constexpr std::uint64_t kItems = 300;

Json fingerprint() { return {{"function", "one_millisecond"}}; }

std::string quiet_run(const fs::path& folder) {
  drive(folder, 2);
  return read_file(folder / "results.jsonl");
}

// A run on `client` during which `harm` gets a busy worker's pid once. `pids` carries what earlier
// rounds know of the workers: a round may be over before its first report.
std::string disturbed_run(Client& client, const fs::path& path,
                          const std::function<void(pid_t)>& harm, Random& random,
                          std::map<int, pid_t>& pids) {
  RunFolder folder(path, fingerprint(), range(kItems), {});
  JobSpec job;
  job.function = "one_millisecond";
  RunRequest request{.indices = range(kItems), .work = folder.remaining()};
  const std::uint64_t when = random.below(kItems * 3 / 4);
  std::uint64_t seen = 0;
  request.on_tick = [&](const RunReport& report, bool) {
    for (const WorkerReport& worker : report.workers)
      if (worker.pid != 0 && worker.phase != "gone")
        pids[worker.id] = static_cast<pid_t>(worker.pid);
  };
  bool harmed = false;
  client.run(job, request, [&](const Outcome& outcome) {
    folder.record(client, outcome);
    if (++seen < when || harmed || !pids.contains(outcome.worker)) return;
    harm(pids[outcome.worker]);
    harmed = true;
  });
  EXPECT_EQ(seen, kItems);
  folder.finish(nullptr, nullptr);
  return read_file(path / "results.jsonl");
}

TEST(Chaos, AHundredKilledOrStoppedWorkersChangeNothing) {
  const TempFolder folder;
  const std::string expected = quiet_run(folder.path() / "quiet");
  ASSERT_EQ(std::count(expected.begin(), expected.end(), '\n'), static_cast<long>(kItems));
  Client client(local(3), {.heartbeat_s = 0.05, .silence_s = 0.6});
  int harmed = 0;
  std::map<int, pid_t> pids;
  for (std::uint64_t round = 0; round < 100; ++round) {
    Random random({round, 1});
    const int signal = round % 4 == 0 ? SIGSTOP : SIGKILL;
    const auto harm = [&](pid_t pid) { harmed += ::kill(pid, signal) == 0 ? 1 : 0; };
    ASSERT_EQ(disturbed_run(client, folder.path() / std::to_string(round), harm, random, pids),
              expected)
        << "round " << round;
    fs::remove_all(folder.path() / std::to_string(round));
  }
  EXPECT_GT(harmed, 20);
}

TEST(Chaos, FiftyKilledDriversResumeWithOtherNumbersOfWorkers) {
  const TempFolder folder;
  const std::string expected = quiet_run(folder.path() / "quiet");
  int killed = 0;
  for (std::uint64_t round = 0; round < 50; ++round) {
    Random random({round, 2});
    const fs::path out = folder.path() / std::to_string(round);
    const std::uint64_t stop_at = random.below(kItems);
    for (int attempt = 0; attempt < 2; ++attempt) {
      Process driver = Process::start(
          {.argv = {"/proc/self/exe", "drive", out.string(), std::to_string(1 + random.below(4))},
           .stdout_path = folder.path() / "log"});
      const bool reached = wait_until([&] {
        return driver.poll() ||
               count_items(out).ok >= stop_at * (1U + static_cast<unsigned>(attempt)) / 2;
      });
      ASSERT_TRUE(reached) << "round " << round;
      killed += driver.poll() ? 0 : 1;
      ::kill(driver.pid(), SIGKILL);
      driver.wait();
    }
    drive(out, 1 + static_cast<int>(random.below(4)));
    ASSERT_EQ(read_file(out / "results.jsonl"), expected) << "round " << round;
    fs::remove_all(out);
  }
  EXPECT_GT(killed, 25);
}

TEST(Chaos, AMillionItemsInLittleMemory) {
  Client client(local(2));
  JobSpec job;
  job.function = "square";
  std::uint64_t sum = 0;
  std::uint64_t count = 0;
  client.run(job, {.indices = range(1000000)}, [&](const Outcome& outcome) {
    ++count;
    sum += outcome.index;
  });
  EXPECT_EQ(count, 1000000U);
  EXPECT_EQ(sum, 999999ULL * 1000000 / 2);
}

TEST(Chaos, AResultOfAGibibyteGoesThroughAFile) {
  const TempFolder folder;
  const fs::path out = folder.path() / "out";
  const auto r = run_command(
      {.argv = {in_bin("tutti"), "map", "--items", "1", "--output_dir", out.string(), "--quiet",
                "--", "sh", "-c", "head -c 1073741824 /dev/zero | tr '\\0' x"},
       .timeout = std::chrono::seconds(380)});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_GT(fs::file_size(out / "results.jsonl"), 1073741824U);
}

}  // namespace
}  // namespace tutti::parallel
