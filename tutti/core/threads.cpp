#include "tutti/core/threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
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

std::size_t threads_at_most(std::size_t limit) {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, limit);
}

}  // namespace tutti
