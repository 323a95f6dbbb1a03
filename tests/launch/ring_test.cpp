#include "tutti/launch/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"

namespace tutti::launch {
namespace {

using testing::HasSubstr;

std::vector<std::string> run_ring(int world_size,
                                  const std::function<void(ControlPlane&, Ring&)>& body) {
  TempFolder folder;
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      RankContext context;
      context.rank = context.local_rank = rank;
      context.world_size = context.local_world_size = world_size;
      context.host = "host" + std::to_string(rank);
      try {
        auto control =
            ControlPlane::join(context, {.run_folder = folder.path(), .join_timeout = Timeout(30)});
        Ring ring(*control);
        body(*control, ring);
        control->finish();
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

// Reproducible, and different on every rank.
template <class T>
std::vector<T> numbers(int rank, std::size_t n) {
  Random random({7, static_cast<std::uint64_t>(rank)});
  std::vector<T> values(n);
  for (T& value : values) value = static_cast<T>(random.uniform(-100, 100));
  return values;
}

template <class T>
void check_all_reduce(DType type, int world_size, std::size_t n, double tolerance) {
  std::vector<std::vector<T>> results(static_cast<std::size_t>(world_size));
  const auto errors = run_ring(world_size, [&](ControlPlane& control, Ring& ring) {
    const int rank = control.rank().rank;
    std::vector<T> values = numbers<T>(rank, n);
    ring.all_reduce_sum(type, values.data(), n);
    results[static_cast<std::size_t>(rank)] = values;
  });
  for (const auto& error : errors) ASSERT_EQ(error, "");
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int rank = 0; rank < world_size; ++rank)
      sum += static_cast<double>(numbers<T>(rank, i + 1)[i]);
    ASSERT_NEAR(static_cast<double>(results[0][i]), sum, tolerance) << i;
    if (i > 40) break;  // the rest by comparison of the ranks
  }
  for (const auto& result : results) ASSERT_EQ(result, results[0]) << "ranks differ in some bit";
}

class Rings : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Rings, testing::Values(1, 2, 3, 4, 5));

TEST_P(Rings, AllReduceSumsEveryType) {
  // Fewer elements than ranks, none at all, more than the socket buffers hold.
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{1000003}}) {
    check_all_reduce<float>(DType::kFloat32, GetParam(), n, 1e-3);
  }
  check_all_reduce<double>(DType::kFloat64, GetParam(), 1001, 1e-11);
  check_all_reduce<std::int64_t>(DType::kInt64, GetParam(), 1001, 0);
}

TEST_P(Rings, BroadcastFromEveryRoot) {
  const int world_size = GetParam();
  const auto errors = run_ring(world_size, [&](ControlPlane& control, Ring& ring) {
    for (int root = 0; root < world_size; ++root) {
      for (const std::size_t n : {std::size_t{0}, std::size_t{5}, std::size_t{700001}}) {
        std::vector<double> values = numbers<double>(control.rank().rank, n);
        ring.broadcast(values.data(), n * sizeof(double), root);
        ASSERT_EQ(values, numbers<double>(root, n));
      }
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST_P(Rings, GatherAndScatterAreByRank) {
  const int world_size = GetParam();
  const auto errors = run_ring(world_size, [&](ControlPlane& control, Ring& ring) {
    const int rank = control.rank().rank;
    const std::size_t n = 33;
    const std::vector<double> mine = numbers<double>(rank, n);
    std::vector<double> all(n * static_cast<std::size_t>(world_size));
    ring.all_gather(mine.data(), all.data(), n * sizeof(double));
    for (int r = 0; r < world_size; ++r) {
      ASSERT_EQ(std::vector<double>(all.begin() + 33 * r, all.begin() + 33 * (r + 1)),
                numbers<double>(r, n));
    }
    // Everyone contributes (destination + 1) * (rank + 1); destination d gets (d + 1) * W(W+1)/2.
    std::vector<std::int64_t> parts;
    for (int d = 0; d < world_size; ++d)
      parts.insert(parts.end(), 5, std::int64_t{d + 1} * (rank + 1));
    std::vector<std::int64_t> part(5);
    ring.reduce_scatter_sum(DType::kInt64, parts.data(), part.data(), 5);
    ASSERT_EQ(part, std::vector<std::int64_t>(
                        5, std::int64_t{rank + 1} * world_size * (world_size + 1) / 2));
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(Ring, Bf16RoundsToNearestEven) {
  // 1 + 2^-8 lies between two bf16 numbers, exactly half way: it goes to the even one, 1.
  const std::uint16_t one = 0x3f80;
  const std::uint16_t tiny = 0x3b80;  // 2^-8
  const std::uint16_t infinity = 0x7f80;
  const std::uint16_t nan = 0x7fc0;
  const auto errors = run_ring(2, [&](ControlPlane& control, Ring& ring) {
    const bool first = control.rank().rank == 0;
    std::uint16_t values[4] = {one, first ? one : tiny, first ? one : infinity, first ? one : nan};
    ring.all_reduce_sum(DType::kBFloat16, values, 4);
    EXPECT_EQ(values[0], 0x4000);  // 2
    EXPECT_EQ(values[1], one);
    EXPECT_EQ(values[2], infinity);
    EXPECT_EQ(values[3] & 0x7fc0, 0x7fc0);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(Ring, RankThatLeavesIsNamedByAllOthers) {
  const auto errors = run_ring(3, [&](ControlPlane& control, Ring& ring) {
    if (control.rank().rank == 2) throw DataError("gone");
    std::vector<float> values(1 << 20, 1.0F);
    ring.all_reduce_sum(DType::kFloat32, values.data(), values.size());
  });
  for (const int rank : {0, 1}) EXPECT_THAT(errors[rank], HasSubstr("rank 2 (host2"));
}

}  // namespace
}  // namespace tutti::launch
