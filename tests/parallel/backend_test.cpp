#include "tutti/parallel/backends/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/config/load.h"

namespace tutti::parallel {
namespace {

using testing::HasSubstr;

std::string problems_of(const std::string& yaml) {
  config::Problems problems;
  parse_parallel(config::parse_yaml(yaml, "p.yaml"), problems);
  return problems.describe();
}

TEST(ParseParallel, NothingMeansOneLocalWorker) {
  config::Problems problems;
  const ParallelSettings settings = parse_parallel(config::Node(), problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(settings.env, "local");
  EXPECT_EQ(settings.n_workers, 1);
}

TEST(ParseParallel, ReadsEveryKey) {
  config::Problems problems;
  const ParallelSettings settings = parse_parallel(
      config::parse_yaml(
          "env: local\nn_workers: 8\noptions: {threads_per_worker: 1, memory_limit: "
          "2GB}\nmax_retries: 1\n"
          "on_error: skip\nitem_timeout: 00:01:30\nresume: false\nasync: true\nplugins: [a.so]\n",
          "p.yaml"),
      problems);
  EXPECT_EQ(problems.describe(), "");
  EXPECT_EQ(settings.n_workers, 8);
  EXPECT_EQ(settings.max_retries, 1);
  EXPECT_EQ(settings.on_error, "skip");
  EXPECT_DOUBLE_EQ(settings.item_timeout_s, 90);
  EXPECT_FALSE(settings.resume);
  EXPECT_TRUE(settings.async);
  EXPECT_EQ(settings.plugins, std::vector<std::string>{"a.so"});
}

TEST(ParseParallel, ClusterOptionsUnderLocalSayWhereTheyBelong) {
  const std::string text = problems_of("env: local\noptions: {queue: gpu, walltime: 01:00:00}\n");
  EXPECT_THAT(text, HasSubstr("p.yaml:2"));
  EXPECT_THAT(text, HasSubstr("queue"));
  EXPECT_THAT(text, HasSubstr("batch-scheduler option"));
  EXPECT_THAT(text, HasSubstr("walltime"));
}

TEST(ParseParallel, UnknownNamesGetASuggestion) {
  EXPECT_THAT(problems_of("env: locla\n"), HasSubstr("did you mean 'local'"));
  EXPECT_THAT(problems_of("n_worker: 2\n"), HasSubstr("n_workers"));
  EXPECT_THAT(problems_of("options: {threads_per_workers: 2}\n"), HasSubstr("threads_per_worker"));
  EXPECT_THAT(problems_of("n_workers: 0\n"), HasSubstr("n_workers"));
  EXPECT_THAT(problems_of("strategy: ddp\n"), HasSubstr("trainer"));
}

TEST(ParseParallel, DaskOnlyOptionsWarnAndPass) {
  config::Problems problems;
  parse_parallel(config::parse_yaml("options: {dashboard_address: ':8787'}\n", "p.yaml"), problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(problems.warnings().size(), 1U);
}

TEST(LocalBackend, ScriptsShowTheCommandAndTheThreads) {
  config::Problems problems;
  const auto settings = parse_parallel(
      config::parse_yaml("n_workers: 2\noptions: {threads_per_worker: 3, niceness: 5}\n", "p"),
      problems);
  const WorkerLaunch launch{.command = {"tutti", "worker", "--run", "/r"}, .run_folder = "/r"};
  const auto previews = make_backend(settings, launch, CommandRunner::system())->scripts(2);
  ASSERT_EQ(previews.size(), 2U);
  EXPECT_THAT(previews[1].submit_command, HasSubstr("OMP_NUM_THREADS=3"));
  EXPECT_THAT(previews[1].submit_command, HasSubstr("TUTTI_WORKER_NICE=5"));
  EXPECT_THAT(previews[1].submit_command, HasSubstr("tutti worker --run /r --id 1"));
}

}  // namespace
}  // namespace tutti::parallel
