// The price of one per-step agreement: W processes on this machine, loopback.
//
//   bench_launch_agree [WORLD_SIZE...]      default: 2 4
//
// Two numbers per world: agree() called back to back (the latency), and agree_begin/agree_end
// around 1 ms of work, as the training loop does it (what the step really pays).
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/launch/control.h"

namespace {

using namespace tutti;
using namespace tutti::launch;
using SteadyClock = std::chrono::steady_clock;

double microseconds(SteadyClock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return fmt::format("median {:.1f} us, 99 % below {:.1f} us", times[times.size() / 2],
                     times[times.size() * 99 / 100]);
}

void work(std::chrono::microseconds time) {
  const auto until = SteadyClock::now() + time;
  while (SteadyClock::now() < until) {
  }
}

void run_rank(int rank, int world_size, const std::filesystem::path& folder) {
  RankContext context;
  context.rank = context.local_rank = rank;
  context.world_size = context.local_world_size = world_size;
  context.host = "localhost";
  const auto control = ControlPlane::join(context, {.run_folder = folder});
  std::vector<double> latency;
  for (int step = 0; step < 5000; ++step) {
    const auto begin = SteadyClock::now();
    control->agree({.step = step, .flags = kHasData});
    if (step >= 500) latency.push_back(microseconds(SteadyClock::now() - begin));
  }
  std::vector<double> paid;
  for (int step = 0; step < 1000; ++step) {
    const auto begin = SteadyClock::now();
    control->agree_begin({.step = step, .flags = kHasData});
    const auto begun = SteadyClock::now();
    work(std::chrono::microseconds(1000));
    const auto worked = SteadyClock::now();
    control->agree_end();
    paid.push_back(microseconds((begun - begin) + (SteadyClock::now() - worked)));
  }
  if (rank == 0) {
    fmt::print("world {}: agree {}; around 1 ms of work {}\n", world_size, summary(latency),
               summary(paid));
    std::fflush(stdout);
  }
  control->finish();
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<int> worlds;
  for (int i = 1; i < argc; ++i) worlds.push_back(std::stoi(argv[i]));
  if (worlds.empty()) worlds = {2, 4};
  for (const int world_size : worlds) {
    TempFolder folder;
    std::vector<pid_t> children;
    for (int rank = 0; rank < world_size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        run_rank(rank, world_size, folder.path());
        ::_exit(0);
      }
      children.push_back(pid);
    }
    for (const pid_t pid : children) ::waitpid(pid, nullptr, 0);
  }
  return 0;
} catch (...) {  // a main reports whatever comes
  return tutti::report_and_exit_code();
}
