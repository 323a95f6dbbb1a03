// What every command of the front door does: version, help, arguments that nobody knows, advice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

CommandResult run_tutti(std::vector<std::string> arguments,
                        std::map<std::string, std::string> env = {}) {
  arguments.insert(arguments.begin(), std::string(TUTTI_BIN_DIR) + "/tutti");
  return run_command(
      {.argv = arguments, .env = std::move(env), .timeout = std::chrono::seconds(60)});
}

// Those of `tutti --help` that this build has: without torch the stages' program is not there.
std::vector<std::string> commands() {
  std::vector<std::string> names;
  for (const auto& line : split(run_tutti({"--help"}).out, '\n'))
    if (line.starts_with("  ") && line.size() > 2 && line[2] != ' ')
      names.push_back(split_words(line)[0]);
  EXPECT_GT(names.size(), 15U);
  if (!fs::exists(std::string(TUTTI_BIN_DIR) + "/tutti-run"))
    std::erase_if(names, [](const std::string& name) {
      static const std::vector<std::string> kFront = {"config",   "doctor", "launch", "pack",
                                                      "parallel", "map",    "status", "wait",
                                                      "gather",   "cancel", "worker"};
      return std::find(kFront.begin(), kFront.end(), name) == kFront.end();
    });
  return names;
}

TEST(CommandLine, SaysWhatItIs) {
  const CommandResult result = run_tutti({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              ::testing::MatchesRegex("tutti [0-9]+\\.[0-9]+\\.[0-9]+ \\([a-z0-9-]+\\), torch "
                                      "([0-9.]+|none), CUDA ([0-9.]+|none)\n"));
}

TEST(CommandLine, EveryHelpExitsZeroAndShowsAnExample) {
  std::vector<std::vector<std::string>> all;
  for (const auto& name : commands()) all.push_back({name});
  for (const char* sub : {"check", "show", "reference"}) all.push_back({"config", sub});
  all.push_back({"parallel", "script"});
  for (auto words : all) {
    const std::string name = join(words, " ");
    words.emplace_back("--help");
    const CommandResult result = run_tutti(words);
    EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.err;
    EXPECT_THAT(result.out, HasSubstr("example:\n  tutti ")) << name;
  }
}

TEST(CommandLine, AnUnknownArgumentIsAConfigErrorWithAdvice) {
  for (const auto& name : commands()) {
    const CommandResult result = run_tutti({name, "--no-such-option"});
    EXPECT_EQ(result.exit_code, 2) << name << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr("fix: ")) << name;
  }
  EXPECT_THAT(run_tutti({"map", "--item", "3"}).err, HasSubstr("did you mean '--items'?"));
  EXPECT_THAT(run_tutti({"config", "chek", "x.yaml"}).err, HasSubstr("did you mean 'check'?"));
  EXPECT_THAT(run_tutti({"doktor"}).err, HasSubstr("did you mean 'doctor'?"));
  EXPECT_THAT(run_tutti({"decode"}).err, HasSubstr("did you mean 'infer'?"));
  EXPECT_THAT(run_tutti({"map", "--trainer.max_epochs=3"}).err,
              HasSubstr("an override has no dashes: trainer.max_epochs=VALUE"));
}

std::string check_file(const std::string& name, const std::string& text) {
  const TempFolder folder;
  write_file_atomic(folder.path() / name, text);
  const CommandResult result = run_tutti({"config", "check", (folder.path() / name).string()});
  EXPECT_EQ(result.exit_code, 2) << text;
  return result.err;
}

TEST(CommandLine, NamesOfOtherToolkitsLeadToOurs) {
  const std::string slurm =
      check_file("parallel_a.yaml",
                 "parallel: {env: slurm, n_workers: 2, options: {partition: gpu, gres: 'gpu:1', "
                 "time: 1h, qos: high, cores: 2, memory: 8GB}}\n");
  EXPECT_THAT(slurm, HasSubstr("parallel.options.partition: is called queue here"));
  EXPECT_THAT(
      slurm,
      HasSubstr("parallel.options.gres: is written under job_extra_directives: ['--gres=gpu:1']"));
  EXPECT_THAT(slurm, HasSubstr("parallel.options.time: is called walltime here"));
  EXPECT_THAT(slurm, Not(HasSubstr("known keys here")));
  EXPECT_THAT(check_file("parallel_b.yaml", "parallel: {env: slurm, nj: 32}\n"),
              HasSubstr("is called n_workers here"));
  const std::string training = check_file("train.yaml", "max_epoch: 3\naccum_grad: 2\nngpu: 1\n");
  EXPECT_THAT(training, HasSubstr("max_epoch: is called trainer.max_epochs here"));
  EXPECT_THAT(training, HasSubstr("accum_grad: is called trainer.accumulate_grad_batches here"));
  EXPECT_THAT(training, HasSubstr("ngpu: is called num_device here"));
}

TEST(CommandLine, ASizeWithoutUnitIsQuestioned) {
  EXPECT_THAT(check_file("parallel_a.yaml",
                         "parallel: {env: slurm, n_workers: 2, options: {cores: 2, memory: 32}}\n"),
              HasSubstr("parallel.options.memory: got '32', expected a size with its unit: 32GB"));
}

TEST(CommandLine, ATabIsNamed) {
  EXPECT_THAT(check_file("train.yaml", "trainer:\n\tdevices: 1\n"),
              HasSubstr("train.yaml:2:1: a tab in the indentation"));
}

// A program of this name that says `text` and ends with `code`.
void put_program(const fs::path& folder, const std::string& name, const std::string& text,
                 int code) {
  write_file_atomic(folder / name, "#!/bin/sh\necho '" + text + "'" + (code == 0 ? "" : " >&2") +
                                       "\nexit " + std::to_string(code) + "\n");
  fs::permissions(folder / name, fs::perms::owner_all);
}

TEST(Doctor, ShowsTheQueuesOneMayName) {
  const TempFolder folder;
  put_program(folder.path(), "sbatch", "slurm 22.05.8", 0);
  put_program(folder.path(), "sinfo", "cpu*\ngpu\ngpu", 0);
  const auto result = run_tutti({"doctor"}, {{"PATH", folder.path().string()}});
  EXPECT_THAT(result.out, HasSubstr("slurm        ready; queues: cpu (default), gpu\n"));
}

TEST(Doctor, AsksEachSchedulerAndTellsTheTruth) {
  const TempFolder folder;
  put_program(folder.path(), "sbatch", "slurm 22.05.8", 0);
  put_program(folder.path(), "sinfo", "slurm_load_partitions: Unable to contact slurm controller",
              1);
  put_program(folder.path(), "bsub", "LSF 10", 0);
  put_program(folder.path(), "bqueues", "normal", 0);
  put_program(folder.path(), "qsub", "SGE 8", 0);
  const auto report =
      parse_json(run_tutti({"doctor", "--json"}, {{"PATH", folder.path().string()}}).out, "doctor");
  EXPECT_FALSE(report["envs"]["slurm"]["usable"].get<bool>());
  EXPECT_THAT(report["envs"]["slurm"]["needs"].get<std::string>(),
              HasSubstr("Slurm does not answer: slurm_load_partitions: Unable to contact"));
  EXPECT_TRUE(report["envs"]["lsf"]["usable"].get<bool>());
  EXPECT_THAT(report["envs"]["sge"]["needs"].get<std::string>(),
              HasSubstr("not Grid Engine's `qconf`"));
  EXPECT_EQ(report["envs"]["lsf"]["queues"], Json({"normal"}));
  EXPECT_FALSE(report["versions"]["tutti"].get<std::string>().empty());
  EXPECT_FALSE(report["versions"]["torch"].get<std::string>().empty());
}

}  // namespace
}  // namespace tutti
