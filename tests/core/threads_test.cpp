#include "tutti/core/threads.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tutti {
namespace {

TEST(Threads, EveryPieceOnceWhateverTheirNumber) {
  for (const std::size_t count : {0, 1, 7, 100})
    for (const std::size_t threads : {1, 3, 16}) {
      std::vector<std::atomic<int>> done(count);
      in_threads(count, threads, [&](std::size_t i) { ++done[i]; });
      for (const auto& times : done) EXPECT_EQ(times, 1);
    }
}

TEST(Threads, WhatAPieceThrowsIsTheCallers) {
  EXPECT_THROW(in_threads(20, 4,
                          [](std::size_t i) {
                            if (i == 5) throw std::runtime_error("five");
                          }),
               std::runtime_error);
}

// A job of one core on a large node.
TEST(Threads, AreAsManyAsMayRunHere) {
  std::thread([] {  // the test's own processors stay its own
    cpu_set_t set;
    ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
    int first = 0;
    while (!CPU_ISSET(first, &set)) ++first;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
    EXPECT_EQ(usable_cpus(), 1);
    EXPECT_EQ(threads_at_most(16), 1U);
  })
      .join();
  EXPECT_LE(threads_at_most(1), 1U);
}

}  // namespace
}  // namespace tutti
