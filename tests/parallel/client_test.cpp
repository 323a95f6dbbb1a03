#include "tutti/parallel/client.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/parallel/items.h"

namespace tutti::parallel {
namespace {

using namespace trial;

TEST(Client, AHundredThousandItemsEachOnceAndInOrder) {
  const ParallelScope parallel(local(2));
  const std::vector<Json> results = parallel_map(square, range(100000));
  ASSERT_EQ(results.size(), 100000U);
  for (std::uint64_t i = 0; i < results.size(); ++i)
    ASSERT_EQ(results[i].get<std::uint64_t>(), i * i);
}

TEST(Client, NoConfigMeansOneLocalWorker) {
  const std::vector<Json> pids = parallel_map(worker_pid, range(50));
  const std::set<Json> different(pids.begin(), pids.end());
  EXPECT_EQ(different.size(), 1U);
}

TEST(Client, AListOfIndicesComesBackInItsOrder) {
  const std::vector<Json> results = parallel_map(square, Indices({7, 3, 9, 4}));
  EXPECT_EQ(Json(results).dump(), "[49,9,81,16]");
}

}  // namespace
}  // namespace tutti::parallel
