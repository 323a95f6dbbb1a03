#include "tutti/core/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

namespace tutti {

void in_threads(std::size_t count, std::size_t num_threads,
                const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // guarded by mutex
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {  // thrown below, in the caller's thread
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < std::min(num_threads, count); ++t) others.emplace_back(loop);
  loop();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
  // "400000 100000": 4 processors' worth of time; "max 100000": no limit.
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0)
    cpus = std::min(cpus, std::max(1, static_cast<int>(quota / period)));
  return cpus;
}

std::size_t threads_at_most(std::size_t limit) {
  return std::clamp<std::size_t>(static_cast<std::size_t>(usable_cpus()), 1, limit);
}

}  // namespace tutti
