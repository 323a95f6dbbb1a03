// The stand-in's own rules, with ranks as processes over plain memory: right numbers for right
// calls, and a clear end for every misuse that NCCL would answer with a hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/core/file.h"

extern "C" {
struct UniqueId {
  char bytes[128];
};
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};
int ncclGetUniqueId(UniqueId* id);
int ncclCommInitRankConfig(void** comm, int num_ranks, UniqueId id, int rank, Config* config);
int ncclCommGetAsyncError(void* comm, int* state);
int ncclCommAbort(void* comm);
int ncclAllReduce(const void*, void*, std::size_t, int type, int op, void* comm, void* stream);
int ncclBroadcast(const void*, void*, std::size_t, int type, int root, void* comm, void* stream);
int ncclAllGather(const void*, void*, std::size_t, int type, void* comm, void* stream);
int ncclReduceScatter(const void*, void*, std::size_t, int type, int op, void* comm, void* stream);
}

namespace tutti::trainer {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr int kInProgress = 7, kRemoteError = 6;
constexpr int kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9, kSum = 0, kMax = 2;
constexpr int kPunished = 97, kWrong = 1;

// Polls as a careful caller does.
int settled(void* comm) {
  int state = kInProgress;
  while (state == kInProgress) ncclCommGetAsyncError(comm, &state);
  return state;
}

// One rank's view; what it checks ends its process with kWrong.
struct Rank {
  void* comm;
  int rank;
  int size;
  void expect(bool right) const {
    if (!right) std::_Exit(kWrong);
  }
  void all_reduce(std::vector<float>& x, int type = kFloat32) const {
    ncclAllReduce(x.data(), x.data(), x.size(), type, kSum, comm, nullptr);
    expect(settled(comm) == 0);
  }
};

struct Ended {
  std::vector<int> codes;
  std::vector<std::string> said;
};

Ended run_ranks(int size, const std::function<void(const Rank&)>& body) {
  TempFolder folder;
  UniqueId id{};
  EXPECT_EQ(ncclGetUniqueId(&id), 0);
  std::vector<pid_t> children;
  const auto log = [&](int rank) { return folder.path() / std::to_string(rank); };
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(100);  // a rank that hangs against expectation
      if (!std::freopen(log(rank).c_str(), "w", stderr)) std::_Exit(kWrong);
      Config config;
      void* comm = nullptr;
      if (ncclCommInitRankConfig(&comm, size, id, rank, &config) != kInProgress) std::_Exit(kWrong);
      if (settled(comm) != 0) std::_Exit(kWrong);
      body({comm, rank, size});
      std::fflush(nullptr);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  Ended ended;
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    ::waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
    ended.codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    ended.said.push_back(read_file(log(rank)));
  }
  return ended;
}

void expect_punished(const Ended& ended, const std::string& said) {
  EXPECT_THAT(ended.codes, Each(kPunished));
  EXPECT_THAT(ended.said, Each(HasSubstr(said)));
}

TEST(NcclStandIn, EveryOperationGivesTheRightNumbers) {
  for (const int size : {1, 2, 8}) {
    const Ended ended = run_ranks(size, [](const Rank& r) {
      const std::size_t n = 300001, world = static_cast<std::size_t>(r.size);  // several pieces
      const int everyone = r.size * (r.size - 1) / 2;
      std::vector<std::int32_t> x(n);
      for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<int>(i % 1000) + r.rank;
      ncclAllReduce(x.data(), x.data(), n, kInt32, kSum, r.comm, nullptr);
      r.expect(settled(r.comm) == 0);
      for (std::size_t i = 0; i < n; ++i)
        r.expect(x[i] == r.size * static_cast<int>(i % 1000) + everyone);

      std::vector<std::int64_t> part(n, r.rank), whole(n * world);
      ncclAllGather(part.data(), whole.data(), n, kInt64, r.comm, nullptr);
      r.expect(settled(r.comm) == 0);
      for (std::size_t i = 0; i < whole.size(); ++i)
        r.expect(whole[i] == static_cast<std::int64_t>(i / n));

      std::vector<float> own(n), all(n * world);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i / n + 1);
      ncclReduceScatter(all.data(), own.data(), n, kFloat32, kSum, r.comm, nullptr);
      r.expect(settled(r.comm) == 0);
      for (const float value : own) r.expect(value == static_cast<float>(r.size * (r.rank + 1)));

      std::vector<float> from(n, static_cast<float>(r.rank));
      ncclBroadcast(from.data(), from.data(), n, kFloat32, r.size - 1, r.comm, nullptr);
      r.expect(settled(r.comm) == 0);
      for (const float value : from) r.expect(value == static_cast<float>(r.size - 1));
      std::vector<std::uint16_t> halves(3, static_cast<std::uint16_t>(0x3f80 + r.rank));
      ncclAllReduce(halves.data(), halves.data(), 3, kBfloat16, kMax, r.comm, nullptr);
      r.expect(settled(r.comm) == 0);
      for (const std::uint16_t value : halves) r.expect(value == 0x3f80 + r.size - 1);
      // 1.5, a number below 2^-14, the largest one; times two in a world of two.
      std::vector<std::uint16_t> small = {0x3e00, 0x0003, 0x7bff};
      ncclAllReduce(small.data(), small.data(), 3, kFloat16, kSum, r.comm, nullptr);
      r.expect(settled(r.comm) == 0);
      if (r.size == 2) r.expect(small[0] == 0x4200 && small[1] == 0x0006 && small[2] == 0x7c00);
      ncclCommAbort(r.comm);
    });
    EXPECT_THAT(ended.codes, Each(0)) << size << " ranks";
  }
}

TEST(NcclStandIn, CallsThatDifferBetweenRanksAreNamed) {
  expect_punished(run_ranks(2,
                            [](const Rank& r) {
                              std::vector<float> x(r.rank == 0 ? 10 : 11);
                              r.all_reduce(x);
                            }),
                  "NCCL would hang");
  const Ended types = run_ranks(2, [](const Rank& r) {
    std::vector<float> x(10);
    r.all_reduce(x);
    r.all_reduce(x, r.rank == 0 ? kFloat32 : kInt32);
  });
  EXPECT_THAT(types.said[0], HasSubstr("operation 2 is all_reduce of 10 float32 (sum) here and "
                                       "all_reduce of 10 int32 (sum) on rank 1"));
  expect_punished(run_ranks(2,
                            [](const Rank& r) {
                              std::vector<float> x(10);
                              ncclBroadcast(x.data(), x.data(), 10, kFloat32, r.rank, r.comm,
                                            nullptr);
                            }),
                  "broadcast of 10 float32 from rank 1");
  expect_punished(run_ranks(2,
                            [](const Rank& r) {
                              std::vector<float> x(10), y(20);
                              if (r.rank == 0) r.all_reduce(x);
                              ncclAllGather(x.data(), y.data(), 10, kFloat32, r.comm, nullptr);
                              settled(r.comm);
                              if (r.rank == 1) r.all_reduce(x);
                            }),
                  "all_gather of 10 float32");
}

TEST(NcclStandIn, DeadAndBusyCommunicatorsAreNotUsed) {
  expect_punished(run_ranks(2,
                            [](const Rank& r) {
                              ncclCommAbort(r.comm);
                              std::vector<float> x(10);
                              r.all_reduce(x);
                            }),
                  "all_reduce on a communicator that was aborted");
  expect_punished(run_ranks(2,
                            [](const Rank& r) {
                              ncclCommAbort(r.comm);
                              ncclCommAbort(r.comm);
                            }),
                  "ncclCommAbort on a communicator that was aborted");
  expect_punished(run_ranks(2,
                            [](const Rank& r) {
                              std::vector<float> x(10);
                              for (int i = 0; i < 2; ++i)  // nobody asks in between
                                ncclAllReduce(x.data(), x.data(), 10, kFloat32, kSum, r.comm,
                                              nullptr);
                            }),
                  "still in progress");
}

TEST(NcclStandIn, BuffersMayOverlapInPlaceOnly) {
  EXPECT_THAT(run_ranks(2,
                        [](const Rank& r) {
                          std::vector<float> x(20, static_cast<float>(r.rank));
                          ncclAllGather(x.data() + 10 * r.rank, x.data(), 10, kFloat32, r.comm,
                                        nullptr);
                          r.expect(settled(r.comm) == 0 && x[0] == 0 && x[19] == 1);
                        })
                  .codes,
              Each(0));
  expect_punished(run_ranks(2,
                            [](const Rank& r) {
                              std::vector<float> x(25);
                              ncclAllGather(x.data() + 3, x.data(), 10, kFloat32, r.comm, nullptr);
                            }),
                  "input and output overlap");
}

// A caller that asked for it hears of an error, and abort lets go of what would wait for ever.
TEST(NcclStandIn, FaultsComeAsAskedFor) {
  ::setenv("NCCL_STANDIN_FAULT", "lag 1 5", 1);
  EXPECT_THAT(run_ranks(3,
                        [](const Rank& r) {
                          std::vector<float> x(10, 1);
                          for (int i = 0; i < 3; ++i) r.all_reduce(x);
                          r.expect(x[9] == 27);
                        })
                  .codes,
              Each(0));
  ::setenv("NCCL_STANDIN_FAULT", "error 1 2", 1);
  const Ended ended = run_ranks(2, [](const Rank& r) {
    std::vector<float> x(10, 1);
    r.all_reduce(x);
    std::thread releases([&] {
      int state = 0;  // rank 0 only sees its call taken
      while (state != (r.rank == 1 ? kRemoteError : kInProgress))
        ncclCommGetAsyncError(r.comm, &state);
      ncclCommAbort(r.comm);
    });
    ncclAllReduce(x.data(), x.data(), 10, kFloat32, kSum, r.comm, nullptr);  // until the abort
    releases.join();
  });
  ::unsetenv("NCCL_STANDIN_FAULT");
  EXPECT_THAT(ended.codes, Each(0));
  EXPECT_THAT(ended.said[1], HasSubstr("error from operation 2 on, as asked for"));
}

}  // namespace
}  // namespace tutti::trainer
