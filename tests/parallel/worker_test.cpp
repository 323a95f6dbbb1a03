// What a worker owes: results as they were returned, no process left behind, memory counted once.
#include "tutti/parallel/worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/parallel/items.h"
#include "tests/parallel/processes.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/parallel/worker/item_processes.h"
#include "tutti/parallel/worker/worker_state.h"

namespace tutti::parallel {
namespace {

using namespace trial;
using ::testing::HasSubstr;

std::vector<std::string> payloads(const std::string& function, std::uint64_t count,
                                  RunOptions options = {}) {
  Client client(local(1));
  JobSpec job;
  job.function = function;
  std::vector<std::string> out(count);
  client.run(job, {.indices = range(count), .options = std::move(options)},
             [&](const Outcome& outcome) { out[outcome.index] = outcome.payload; });
  return out;
}

TEST(Worker, UnsignedNumbersStayUnsigned) {
  EXPECT_EQ(payloads("huge_number", 2)[1], "9223372036854775809");
}

TEST(Worker, BytesThatAreNoTextAreMarkedAndNotChanged) {
  EXPECT_EQ(payloads("not_text", 1)[0], "{\"bytes\":{\"base64\":\"Yf8=\"},\"text\":\"b\"}");
}

TEST(WorkerState, AnItemIsUnfinishedUntilItsResultIsOnItsWay) {
  WorkerState state;
  state.push_lease({.job = 1, .lease = 5, .ranges = {{0, 1}}});
  WorkerState::JobOrder job;
  WorkerState::BatchOrder batch;
  ASSERT_EQ(state.wait(1, job, batch), WorkerState::Next::kBatch);
  std::uint64_t unfinished = 0;
  EXPECT_TRUE(state.take_output(&unfinished).empty());
  EXPECT_EQ(unfinished, 1U);
  state.add_result(batch, {.index = 0, .payload = "1"}, true);
  // Whoever says that nothing is left has the result in hand.
  EXPECT_EQ(state.take_output(&unfinished).size(), 1U);
  EXPECT_EQ(unfinished, 0U);
}

// The default handler ends `sleep`; a worker that blocked SIGTERM would have its children inherit it.
TEST(Worker, WhatAnItemStartsCanBeEndedWithSigterm) {
  Client client(local(1));
  JobSpec job;
  job.function = "start_sleeper";
  pid_t sleeper = 0;
  client.run(job, {.indices = range(1)}, [&](const Outcome& outcome) {
    sleeper = std::stoi(std::string(outcome.payload));
    EXPECT_THAT(proc_text(sleeper, "status"), HasSubstr("SigBlk:\t0000000000000000"));
  });
  EXPECT_GT(sleeper, 0);
}

TEST(Worker, AForkedChildThatDropsItsClientLeavesTheWorkersAlone) {
  auto client = std::make_unique<Client>(local(1));
  JobSpec job;
  job.function = "worker_pid";
  const auto pid_of_worker = [&] {
    std::string pid;
    client->run(job, {.indices = range(1)}, [&](const Outcome& outcome) { pid = outcome.payload; });
    return pid;
  };
  const std::string before = pid_of_worker();
  const auto folder = client->run_folder();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    client.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(folder));
  EXPECT_EQ(pid_of_worker(), before);
}

// A child between fork and exec has its parent's pages, once.
TEST(Memory, PagesThatProcessesShareCountOnce) {
  constexpr std::size_t kBytes = 200 << 20;
  void* block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  const std::uint64_t used = tree_memory_bytes(::getpid());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::munmap(block, kBytes);
  EXPECT_GT(used, kBytes);
  EXPECT_LT(used, kBytes * 3 / 2);
}

}  // namespace
}  // namespace tutti::parallel
