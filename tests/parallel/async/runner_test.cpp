// Runners whose workers need no driver: the same files as with one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/parallel/items.h"
#include "tests/places.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SquaresProvider : public EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(Env& env) const override {
    env.put("power", std::make_shared<int>(params().value("power", 2)));
  }
};
TUTTI_REGISTER_PROVIDER(SquaresProvider);

class SquaresRunner : public BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const Env& env) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (index == 7'000'000) throw TaskError("seven is not my number");
    std::uint64_t result = 1;
    for (int i = 0; i < env.get<int>("power"); ++i) result *= index;
    return {{"index", index}, {"result", result}};
  }
  void write_record(std::uint64_t, const Json&) override { ++records; }
  int records = 0;
};
TUTTI_REGISTER_RUNNER(SquaresRunner);

// Beside the results: how many lines they have.
void count_squares(const fs::path& folder, const Json& params) {
  const std::string text = read_file(folder / "results.jsonl");
  write_file_atomic(folder / "count.txt",
                    params.at("prefix").get<std::string>() +
                        std::to_string(std::count(text.begin(), text.end(), '\n')) + "\n");
}
TUTTI_REGISTER_FINISHER(count_squares);

// Takes longer than a worker may be silent, and counts how often it is called.
void slow_finisher(const fs::path& folder, const Json& params) {
  const UniqueFd fd(::open((folder / "calls").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
  write_all(fd.get(), "x", folder / "calls");
  std::this_thread::sleep_for(std::chrono::duration<double>(params.at("seconds").get<double>()));
}
TUTTI_REGISTER_FINISHER(slow_finisher);

// The first to call it is killed, and leaves a half-written file behind.
void deadly_finisher(const fs::path& folder, const Json&) {
  if (fs::exists(folder / "calls")) return;
  write_file_atomic(folder / "calls", "x");
  write_file_atomic(folder / "results.jsonl.tmp.host.1.0", "{");
  ::kill(::getpid(), SIGKILL);
}
TUTTI_REGISTER_FINISHER(deadly_finisher);

class AsyncRunner : public ::testing::Test {
 protected:
  ~AsyncRunner() override {
    for (const char* name : {"async", "other"})
      if (fs::exists(async_folder(folder_.path() / name)))
        tutti({"cancel", "--now", (folder_.path() / name).string()});
  }
  static CommandResult tutti(std::vector<std::string> words) {
    words.insert(words.begin(), in_bin("tutti"));
    return run_command({.argv = words, .timeout = std::chrono::seconds(100)});
  }
  static ParallelSettings settings(bool async) {
    ParallelSettings settings = trial::local(2);
    settings.async = async;
    return settings;
  }
  RunOptions options(const char* name) const {
    RunOptions options;
    options.output_dir = folder_.path() / name;
    options.item_of = [](std::uint64_t index) -> Json { return "item " + std::to_string(index); };
    options.finisher = "count_squares";
    options.finisher_params = {{"prefix", "lines: "}};
    return options;
  }
  std::vector<Json> run(const char* name, bool async, const Indices& indices) {
    const ParallelScope scope(settings(async));
    const SquaresProvider provider(config::Node(), {{"power", 2}});
    SquaresRunner runner(provider);
    const auto results = runner(indices, options(name));
    EXPECT_EQ(runner.records, static_cast<int>(indices.size())) << "writers see every result once";
    return results;
  }
  std::string file(const char* name, const char* file) const {
    return read_file(folder_.path() / name / file);
  }
  TempFolder folder_{"async-runner"};
};

TEST_F(AsyncRunner, TheCallWaitsAndGivesWhatASynchronousOneGives) {
  const Indices items = range(100, 400);
  const auto expected = run("sync", false, items);
  EXPECT_EQ(run("async", true, items), expected);
  EXPECT_EQ(file("async", "results.jsonl"), file("sync", "results.jsonl"));
  EXPECT_EQ(file("async", "count.txt"), "lines: 300\n");
  EXPECT_THAT(file("sync", "results.jsonl"), HasSubstr("\"item\":\"item 100\""));
  EXPECT_EQ(run("async", true, items), expected) << "again: nothing is left to do";
}

TEST_F(AsyncRunner, SubmitLeavesAndTheLastWorkerWritesEverything) {
  for (const Indices& items : {range(100, 400), Indices({5, 3, 900, 17})}) {
    fs::remove_all(folder_.path() / "sync");
    fs::remove_all(folder_.path() / "other");
    run("sync", false, items);
    {
      const ParallelScope scope(settings(true));
      const SquaresProvider provider(config::Node(), {{"power", 2}});
      SquaresRunner runner(provider);
      EXPECT_FALSE(runner.submit(items, options("other")).empty());
      EXPECT_THROW(runner.submit(items, {}), ConfigError) << "without a folder there is no meeting";
    }
    const auto waited = tutti({"wait", (folder_.path() / "other").string()});
    EXPECT_EQ(waited.exit_code, 0) << waited.out << waited.err;
    EXPECT_EQ(file("other", "results.jsonl"), file("sync", "results.jsonl"));
    EXPECT_EQ(file("other", "count.txt"), file("sync", "count.txt"));
  }
}

TEST_F(AsyncRunner, GatherWritesTheBytesOfTheRunsOwnDriver) {
  run("sync", false, range(100, 400));
  const std::string expected = file("sync", "results.jsonl");
  fs::remove(folder_.path() / "sync/results.jsonl");
  const auto gathered = tutti({"gather", (folder_.path() / "sync").string()});
  EXPECT_EQ(gathered.exit_code, 0) << gathered.err;
  EXPECT_EQ(file("sync", "results.jsonl"), expected);
}

TEST_F(AsyncRunner, AFailedItemEndsTheCallWithItsReason) {
  try {
    run("async", true, range(6'999'990, 7'000'050));
    FAIL() << "no error";
  } catch (const TaskError& error) {
    EXPECT_THAT(error.what(), HasSubstr("seven is not my number"));
  }
}

TEST_F(AsyncRunner, AMergeThatOutlastsTheOthersPatienceRunsOnce) {
  const fs::path out = folder_.path() / "async";
  {
    RunFolder folder(out, {{"function", "square"}}, range(20), {});
    JobSpec job;
    job.function = "square";
    job.finisher = "slow_finisher";
    job.finisher_params = {{"seconds", 3}};
    submit_async(folder, trial::local(3), job, range(20), {}, {.beat_s = 0.1, .stale_s = 0.5});
  }
  EXPECT_TRUE(trial::wait_until([&] { return read_manifest(out).value("state", "") == "done"; }));
  EXPECT_EQ(read_file(out / "calls"), "x") << "somebody took the merge over";
}

TEST_F(AsyncRunner, WhoTakesAMergeOverRemovesWhatTheKilledOneLeft) {
  for (const int workers : {3, 1}) {  // one: `tutti wait` finishes, or the worker's successor
    const fs::path out = folder_.path() / std::to_string(workers);
    {
      RunFolder folder(out, {{"function", "square"}}, range(20), {});
      JobSpec job;
      job.function = "square";
      job.finisher = "deadly_finisher";
      submit_async(folder, trial::local(workers), job, range(20), {},
                   {.beat_s = 0.1, .stale_s = 0.5});
    }
    const auto waited = tutti({"wait", out.string()});
    EXPECT_EQ(waited.exit_code, 0) << waited.out << waited.err;
    EXPECT_TRUE(fs::exists(out / "calls"));
    EXPECT_FALSE(fs::exists(out / "results.jsonl.tmp.host.1.0"));
    EXPECT_TRUE(fs::exists(out / "results.jsonl"));
  }
}

}  // namespace
}  // namespace tutti::parallel
