#include "tutti/core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
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

}  // namespace
}  // namespace tutti
