// Items and workers that misbehave for real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>

#include "tests/parallel/items.h"
#include "tutti/config/load.h"

namespace tutti::parallel {
namespace {

using namespace trial;
using ::testing::HasSubstr;

struct Ended {
  std::map<std::uint64_t, std::string> ok;
  std::map<std::uint64_t, std::string> failed;
  RunReport report;
};

ParallelSettings settings_of(const std::string& yaml) {
  config::Problems problems;
  ParallelSettings settings = parse_parallel(config::parse_yaml(yaml, "test"), problems);
  problems.throw_if_any();
  return settings;
}

Ended run(const std::string& yaml, std::uint64_t n, ClientOptions options = {}) {
  Client client(settings_of(yaml), std::move(options));
  JobSpec job;
  job.function = "mischief";
  Ended ended;
  ended.report = client.run(job, {.indices = range(n)}, [&](const Outcome& outcome) {
    auto& side = outcome.ok() ? ended.ok : ended.failed;
    EXPECT_TRUE(side.emplace(outcome.index, outcome.payload).second) << "twice: " << outcome.index;
  });
  return ended;
}

std::string with_item(int index, const std::string& way,
                      const std::string& more = "on_error: skip") {
  return "n_workers: 2\n" + more + "\noptions: {env: {TUTTI_TEST_ITEM_" + std::to_string(index) +
         ": " + way + "}}\n";
}

TEST(Faults, AThrowingItemFailsAloneWithItsOwnWords) {
  const Ended ended = run(with_item(70, "throw"), 100);
  EXPECT_EQ(ended.ok.size(), 99U);
  ASSERT_EQ(ended.failed.size(), 1U);
  EXPECT_THAT(ended.failed.at(70), HasSubstr("does not like you"));
  EXPECT_EQ(ended.report.workers_lost, 0U);
}

TEST(Faults, EvenAnIntCanBeThrown) { EXPECT_EQ(run(with_item(3, "int"), 10).failed.count(3), 1U); }

TEST(Faults, OnErrorStopEndsTheRunAndNamesTheItem) {
  try {
    run(with_item(70, "throw", "on_error: stop"), 100);
    FAIL() << "should have stopped";
  } catch (const TaskError& error) {
    EXPECT_THAT(error.what(), HasSubstr("item 70"));
    EXPECT_THAT(error.what(), HasSubstr("does not like you"));
  }
}

TEST(Faults, ASegfaultingItemIsQuarantinedAfterMaxRetriesAndNobodyElse) {
  const Ended ended = run(with_item(1234, "segfault", "on_error: skip\nmax_retries: 2"), 3000);
  EXPECT_EQ(ended.ok.size(), 2999U);
  ASSERT_EQ(ended.failed.size(), 1U);
  EXPECT_THAT(ended.failed.at(1234), HasSubstr("killed 2 workers on its own"));
  EXPECT_THAT(ended.failed.at(1234), HasSubstr("SIGSEGV"));
  EXPECT_EQ(ended.report.workers_lost, 2U);
}

TEST(Faults, AnExitingItemIsQuarantined) {
  const Ended ended = run(with_item(5, "exit"), 50);
  EXPECT_EQ(ended.ok.size(), 49U);
  EXPECT_THAT(ended.failed.at(5), HasSubstr("exit code 3"));
}

TEST(Faults, AHangingItemFailsAtItemTimeoutAndTheRestGoesOn) {
  const Ended ended = run(with_item(5, "hang", "on_error: skip\nitem_timeout: 0.3"), 50);
  EXPECT_EQ(ended.ok.size(), 49U);
  EXPECT_THAT(ended.failed.at(5), HasSubstr("item_timeout"));
}

TEST(Faults, AWorkerThatIsStoppedIsReplaced) {
  const Ended ended = run(with_item(5, "stop", "on_error: skip\nmax_retries: 1"), 50,
                          {.heartbeat_s = 0.1, .silence_s = 1.5});
  EXPECT_EQ(ended.ok.size(), 49U);
  EXPECT_THAT(ended.failed.at(5), HasSubstr("silent"));
}

TEST(Faults, MemoryLimitReplacesTheWorkerAndNamesTheItem) {
  const Ended ended =
      run("on_error: skip\nmax_retries: 1\noptions: {memory_limit: 300MB, env: {TUTTI_TEST_ITEM_5: "
          "eat}}\n",
          20);
  EXPECT_EQ(ended.ok.size(), 19U);
  EXPECT_THAT(ended.failed.at(5), HasSubstr("memory_limit"));
}

TEST(Faults, ThreadsOfTheDriverWorkToo) {
  const Ended ended = run("n_workers: 2\noptions: {processes: false}\n", 500);
  EXPECT_EQ(ended.ok.size(), 500U);
}

struct FailingProvider : EnvironmentProvider {
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(Env&) const override { throw DataError("the checkpoint is on fire"); }
};
TUTTI_REGISTER_PROVIDER(FailingProvider);

struct CountingProvider : EnvironmentProvider {
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(Env& env) const override {
    static int builds = 0;
    env.put("builds", std::make_shared<int>(++builds));
  }
};
TUTTI_REGISTER_PROVIDER(CountingProvider);

struct BuildsRunner : BaseRunner {
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t, const Env& env) const override {
    return env.get<int>("builds") * env.param("factor", 1);
  }
};
TUTTI_REGISTER_RUNNER(BuildsRunner);

TEST(Env, AFailingBuildStopsAfterAFewTriesWithTheWorkersWords) {
  const FailingProvider provider;
  BuildsRunner runner(provider);
  try {
    runner(range(10));
    FAIL() << "should have failed";
  } catch (const DataError& error) {  // the worker's own kind of error
    EXPECT_THAT(error.what(), HasSubstr("the checkpoint is on fire"));
    EXPECT_THAT(error.what(), HasSubstr("worker-"));
  }
}

TEST(Env, IsBuiltOncePerWorkerAndKeptForTheNextRunOfTheSameFingerprint) {
  const auto client = get_client<>();
  const CountingProvider provider({}, {{"factor", 10}});
  BuildsRunner runner(provider);
  for (int i = 0; i < 2; ++i)
    for (const Json& result : runner(range(20))) EXPECT_EQ(result, 10);
  const CountingProvider other({}, {{"factor", 100}});
  for (const Json& result : BuildsRunner(other)(range(20))) EXPECT_EQ(result, 200);
}

struct SlowReader : BaseRunner {
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const Env&) const override {
    return std::string(10000, static_cast<char>('a' + index % 26));
  }
  std::vector<Json> forward_batch(std::span<const std::uint64_t> indices,
                                  const Env& env) const override {
    auto results = BaseRunner::forward_batch(indices, env);
    for (Json& result : results)
      result = result.get<std::string>() + static_cast<char>('0' + indices.size());
    return results;
  }
};
TUTTI_REGISTER_RUNNER(SlowReader);

TEST(Runner, BatchesNeverExceedBatchSizeAndKeepTheOrder) {
  const CountingProvider provider;
  SlowReader runner(provider);
  const auto results = runner(range(100), {.batch_size = 7, .cost = [](std::uint64_t i) {
                                             return static_cast<double>(i % 13);
                                           }});
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(results[i].get<std::string>()[0], static_cast<char>('a' + i % 26));
    EXPECT_LE(results[i].get<std::string>().back(), '7');
  }
}

// Says whether it was told of a batch before it came.
struct ReadsAhead : BaseRunner {
  using BaseRunner::BaseRunner;
  bool reads_ahead() const override { return true; }
  void expect(std::span<const std::uint64_t> indices, const Env&) const override {
    coming_.assign(indices.begin(), indices.end());
  }
  Json forward(std::uint64_t index, const Env& env) const override {
    return forward_batch(std::span(&index, 1), env)[0];
  }
  std::vector<Json> forward_batch(std::span<const std::uint64_t> indices,
                                  const Env&) const override {
    const bool told = coming_.size() >= indices.size() &&
                      std::equal(indices.begin(), indices.end(), coming_.begin());
    return std::vector<Json>(indices.size(), told && coming_.size() <= 2 * indices.size());
  }
  mutable std::vector<std::uint64_t> coming_;
};
TUTTI_REGISTER_RUNNER(ReadsAhead);

TEST(Runner, OneThatReadsAheadIsToldOfEveryBatchBeforeItComes) {
  const CountingProvider provider;
  ReadsAhead runner(provider);
  for (const std::uint64_t batch : {1, 4})
    for (const Json& told : runner(range(40), {.batch_size = batch})) EXPECT_EQ(told, true);
}

// Batches that take longer than a lease should: whether the next was known when one began.
struct SlowReadsAhead : ReadsAhead {
  using ReadsAhead::ReadsAhead;
  std::vector<Json> forward_batch(std::span<const std::uint64_t> indices,
                                  const Env&) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // its work
    return std::vector<Json>(indices.size(), coming_.size() > indices.size());
  }
};
TUTTI_REGISTER_RUNNER(SlowReadsAhead);

TEST(Runner, OneThatReadsAheadKnowsTheNextBatchWhenItBeginsOne) {
  const CountingProvider provider;
  SlowReadsAhead runner(provider);
  int known = 0;
  for (const Json& next_known : runner(range(48), {.batch_size = 4})) known += next_known == true;
  EXPECT_GE(known, 24);
}

struct DiesOfReadingFive : BaseRunner {
  using BaseRunner::BaseRunner;
  bool reads_ahead() const override { return true; }
  void expect(std::span<const std::uint64_t> indices, const Env&) const override {
    if (std::find(indices.begin(), indices.end(), 5U) != indices.end()) ::raise(SIGSEGV);
  }
  Json forward(std::uint64_t index, const Env&) const override { return index; }
};
TUTTI_REGISTER_RUNNER(DiesOfReadingFive);

TEST(Runner, AFileThatKillsWhoReadsItIsBlamedAndNotTheItemBefore) {
  const auto block = set_parallel(config::parse_yaml("n_workers: 2\nmax_retries: 1\n", "p"));
  const CountingProvider provider;
  for (const std::uint64_t batch : {1, 4}) {
    DiesOfReadingFive runner(provider);
    const auto results = runner(range(40), {.batch_size = batch, .on_error = "skip"});
    for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(results[i], i == 5 ? Json() : Json(i));
  }
}

struct DislikesFive : BaseRunner {
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const Env&) const override {
    if (index == 5) throw DataError("five is damaged");
    return index;
  }
};
TUTTI_REGISTER_RUNNER(DislikesFive);

TEST(Runner, OneBadItemOfABatchFailsAlone) {
  const CountingProvider provider;
  DislikesFive runner(provider);
  const auto results = runner(range(40), {.batch_size = 8, .on_error = "skip"});
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(results[i], i == 5 ? Json() : Json(i));
}

TEST(Api, ASettingNeverLeaksOutOfItsScope) {
  EXPECT_EQ(current_parallel().n_workers, 1);
  {
    const auto outer = set_parallel(config::parse_yaml("n_workers: 4", "a"));
    {
      const auto inner = set_parallel(config::parse_yaml("n_workers: 2", "b"));
      EXPECT_EQ(current_parallel().n_workers, 2);
    }
    EXPECT_EQ(current_parallel().n_workers, 4);
  }
  EXPECT_EQ(current_parallel().n_workers, 1);
  EXPECT_THROW(static_cast<void>(set_parallel(config::parse_yaml("env: nowhere", "c"))),
               ConfigError);
}

TEST(Api, AsCompletedGivesEveryItemOnceAndMayBeLeftEarly) {
  std::set<std::uint64_t> seen;
  auto all = as_completed(square, range(500));
  while (const auto item = all.next()) {
    EXPECT_EQ(item->result, item->index * item->index);
    EXPECT_TRUE(seen.insert(item->index).second);
  }
  EXPECT_EQ(seen.size(), 500U);
  auto left = as_completed(square, range(100000));
  EXPECT_TRUE(left.next());
}

TEST(Api, ASlowConsumerBoundsWhatIsBuffered) {
  Client client(local(2));
  JobSpec job;
  job.function = "long_text";
  std::uint64_t done_at_first = 0;
  std::uint64_t seen = 0;
  RunRequest request{.indices = range(3000), .options = {.max_buffered_bytes = 1 << 20}};
  request.on_tick = [&](const RunReport& report, bool) {
    if (done_at_first == 0) done_at_first = report.done;
  };
  client.run(job, request, [&](const Outcome&) {
    // Let the workers run as far ahead as they may.
    if (++seen == 1) wait_until([] { return false; }, 0.5);
  });
  EXPECT_EQ(seen, 3000U);
  // 3000 results of 64 KiB are 190 MB; the buffer, the leases in flight and one batch are far less.
  EXPECT_LT(done_at_first, 1500U);
}

}  // namespace
}  // namespace tutti::parallel
