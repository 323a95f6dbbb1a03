// Overrides with several files, named parallel blocks, and `config show` as the programs see it.
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <cstdlib>

#include <filesystem>

#include "tests/places.h"
#include "tutti/config/config_files.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/systems/standard_checker.h"

namespace tutti::config {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kTraining =
    "task: espnet3.systems.asr.task.ASRTask\nmodel: {encoder: conformer}\n";
constexpr const char* kInference = "model: {_target_: espnet2.bin.asr_inference.Speech2Text}\n";

struct Loaded {
  Node training, inference;
  Problems problems;
};

Loaded load_with(const std::vector<std::string>& overrides, const std::string& training = kTraining,
                 const std::string& inference = kInference, const std::string& parallel = {}) {
  const TempFolder folder;
  write_file_atomic(folder.path() / "training.yaml", training);
  write_file_atomic(folder.path() / "inference.yaml", inference);
  Loaded out;
  ConfigFiles first =
      read_config_files(FileKind::kTraining, {folder.path() / "training.yaml"}, out.problems);
  ConfigFiles second =
      read_config_files(FileKind::kInference, {folder.path() / "inference.yaml"}, out.problems);
  const FileChecker checker = systems::standard_checker();
  apply_overrides(overrides, {&first, &second}, checker, Resolvers::standard(), out.problems);
  choose_parallel(parallel, {&first, &second}, out.problems);
  out.training = resolve(first, Resolvers::standard(), out.problems);
  out.inference = resolve(second, Resolvers::standard(), out.problems);
  return out;
}

TEST(Overrides, GoToTheFilesWhoseSchemaKnowsTheKey) {
  const Loaded loaded =
      load_with({"model.device=cuda", "seed=7", "parallel.on_error=skip", "trainer.max_time=1h"});
  EXPECT_EQ(loaded.problems.describe(), "");
  EXPECT_EQ(loaded.inference["model"]["device"].raw(), "cuda");
  EXPECT_FALSE(loaded.training["model"]["device"].defined());
  EXPECT_EQ(loaded.training["seed"].raw(), "7");
  EXPECT_FALSE(loaded.inference["seed"].defined());
  EXPECT_EQ(loaded.training["parallel"]["on_error"].raw(), "skip");
  EXPECT_EQ(loaded.inference["parallel"]["on_error"].raw(), "skip");
  EXPECT_EQ(loaded.training["trainer"]["max_time"].raw(), "1h");
}

TEST(Overrides, AnAddressNamesOneFile) {
  const Loaded loaded = load_with({"inference:parallel.n_workers=8", "training:+my_own=1"});
  EXPECT_EQ(loaded.problems.describe(), "");
  EXPECT_EQ(loaded.inference["parallel"]["n_workers"].raw(), "8");
  EXPECT_EQ(loaded.training["parallel"]["n_workers"].raw(), "1");
  EXPECT_EQ(loaded.training["my_own"].raw(), "1");
  EXPECT_THAT(load_with({"metrics:exp_tag=a"}).problems.describe(),
              HasSubstr("no metrics config was given"));
}

TEST(Overrides, WhatNobodyKnowsIsRefused) {
  const std::string slip = load_with({"trainer.max_epoch=3"}).problems.describe();
  EXPECT_THAT(slip, HasSubstr("no key 'trainer.max_epoch' in the training and inference configs"));
  EXPECT_THAT(slip, HasSubstr("did you mean 'max_epochs'?"));
  EXPECT_THAT(slip, HasSubstr("training:+trainer.max_epoch=3"));
  EXPECT_THAT(load_with({"~nothing_here"}).problems.describe(), HasSubstr("no key 'nothing_here'"));
}

TEST(Overrides, AnOptionOfOneBackendGoesWhereThatBackendIs) {
  const Loaded loaded =
      load_with({"parallel.options.queue=gpu"},
                std::string(kTraining) + "parallel: {env: local, n_workers: 2}\n",
                std::string(kInference) +
                    "parallel: {env: slurm, n_workers: 2, options: {cores: 1, memory: 1GB}}\n");
  EXPECT_EQ(loaded.problems.describe(), "");
  EXPECT_EQ(loaded.inference["parallel"]["options"]["queue"].raw(), "gpu");
  EXPECT_FALSE(loaded.training["parallel"]["options"]["queue"].defined());
}

constexpr const char* kNamed =
    "model: {_target_: espnet2.bin.asr_inference.Speech2Text}\n"
    "parallel_gpu:\n  env: slurm\n  n_workers: 4\n  options: {cores: 8, processes: 1, memory: "
    "16GB}\n";

TEST(ParallelName, ChoosesABlockByNameOrKey) {
  for (const char* name : {"parallel_gpu", "gpu"}) {
    const Loaded loaded = load_with({}, kTraining, kNamed, name);
    EXPECT_EQ(loaded.problems.describe(), "");
    EXPECT_EQ(loaded.inference["parallel"]["env"].raw(), "slurm");
    EXPECT_EQ(loaded.training["parallel"]["env"].raw(), "local");
  }
  EXPECT_EQ(load_with({"inference:parallel=parallel_gpu"}, kTraining, kNamed)
                .inference["parallel"]["env"]
                .raw(),
            "slurm");
  EXPECT_THAT(load_with({}, kTraining, kNamed, "cpu").problems.describe(),
              HasSubstr("named blocks: parallel_gpu"));
}

TEST(ParallelName, ABlockThatNothingUsesIsWarnedAbout) {
  const Loaded loaded = load_with({}, kTraining, kNamed);
  EXPECT_EQ(loaded.inference["parallel"]["env"].raw(), "local");
  ASSERT_EQ(loaded.problems.warnings().size(), 1U);
  EXPECT_THAT(loaded.problems.warnings()[0].fix, HasSubstr("--parallel parallel_gpu"));
}

CommandResult run_tutti(std::vector<std::string> arguments, const fs::path& folder = ".") {
  arguments.insert(arguments.begin(), in_bin("tutti"));
  return run_command({.argv = arguments, .cwd = folder, .timeout = std::chrono::seconds(60)});
}

class TwoFiles : public testing::Test {
 protected:
  void SetUp() override {
    write_file_atomic(folder_.path() / "training.yaml",
                      std::string(kTraining) + "exp_tag: small\nrecipe_dir: .\n");
    write_file_atomic(folder_.path() / "inference.yaml",
                      std::string("model: {_target_: asr, asr_model_file: a.pth}\n") +
                          "parallel_gpu: {env: local, n_workers: 3}\n");
  }
  CommandResult config(std::vector<std::string> words) const {
    words.insert(words.begin(), "config");
    return run_tutti(words, folder_.path());
  }
  TempFolder folder_;
};

TEST_F(TwoFiles, AParallelBlockByKeyGoesToTheFileThatHasIt) {
  const CommandResult shown = config({"show", "inference.yaml", "--training_config",
                                      "training.yaml", "parallel=gpu", "--json", "--quiet"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_EQ(parse_json(shown.out, "show")["parallel"]["n_workers"], 3);
  const CommandResult unknown = config(
      {"show", "inference.yaml", "--training_config", "training.yaml", "parallel=gpus", "--quiet"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("named blocks: parallel_gpu"));
}

TEST_F(TwoFiles, ShowSeesTheExperimentOfTheTrainingConfig) {
  const CommandResult shown = config(
      {"show", "inference.yaml", "--training_config", "training.yaml", "exp_tag=big", "--json"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const Json root = parse_json(shown.out, "show");
  EXPECT_EQ(root["exp_tag"], "big");
  EXPECT_THAT(root["inference_dir"].get<std::string>(), testing::EndsWith("/exp/big/inference"));
  const CommandResult alone = config({"show", "inference.yaml"});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("add --training_config FILE"));
  const CommandResult odd = config({"show", "training.yaml", "--training_config", "training.yaml"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.err, HasSubstr("no inference, metrics or demo config"));
  EXPECT_EQ(config({"check", "--no_files", "inference.yaml", "--training_config", "training.yaml"})
                .exit_code,
            0);
}

TEST_F(TwoFiles, ASlipLeadsToTheFileThatHasTheKeyItMeans) {
  const CommandResult result =
      config({"check", "--no_files", "training.yaml", "inference.yaml", "model.beam_sz=3"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean 'beam_size'?"));
  EXPECT_THAT(result.err, HasSubstr("inference:+model.beam_sz=3"));
}

TEST_F(TwoFiles, AProblemIsPlacedWhereItsValueStands) {
  const CommandResult typed = config({"check", "--no_files", "training.yaml", "exp_tag=[a]"});
  EXPECT_EQ(typed.exit_code, 2);
  EXPECT_THAT(typed.err, HasSubstr("command line: exp_tag: "));
  const CommandResult ours = config({"check", "--no_files", "training.yaml", "num_device=0"});
  EXPECT_THAT(ours.err, HasSubstr("command line: num_device: "));
  EXPECT_THAT(ours.err, HasSubstr("recipe defaults: trainer.devices: "));
}

TEST_F(TwoFiles, AnExperimentThatTheTrainingConfigDecidesIsWarnedAbout) {
  write_file_atomic(folder_.path() / "inference.yaml", "exp_tag: mine\nmodel: {_target_: asr}\n");
  const CommandResult shown =
      config({"show", "inference.yaml", "--training_config", "training.yaml"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_THAT(shown.err, HasSubstr("'mine' is not used: the training config says 'small'"));
}

TEST_F(TwoFiles, TheTopLevelDeviceIsChecked) {
  EXPECT_EQ(config({"check", "--no_files", "inference.yaml", "device=cuda:1"}).exit_code, 0);
  const CommandResult odd = config({"check", "--no_files", "inference.yaml", "device=gpu0"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.err, HasSubstr("command line: device: got 'gpu0', expected auto, cpu, cuda"));
}

TEST_F(TwoFiles, WeightsOfNoBytesAreRefused) {
  write_file_atomic(folder_.path() / "a.pth", "");
  const CommandResult empty = config({"check", "inference.yaml"});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("got 'a.pth', which is empty"));
}

TEST(ParallelName, ReachesTheScriptOfTheCommandLine) {
  const TempFolder folder;
  const std::string file = (folder.path() / "inference.yaml").string();
  write_file_atomic(file, kNamed);
  const CommandResult script = run_tutti({"parallel", "script", "--config", file, "--parallel",
                                          "gpu", "parallel_gpu.options.queue=a100"});
  EXPECT_EQ(script.exit_code, 0) << script.err;
  EXPECT_THAT(script.out, HasSubstr("#SBATCH -p a100"));
}

// A block that is misspelt or not indented would leave its work to this machine.
TEST(ParallelFile, IsRefusedByTheCommandsThatUseItInTheWordsOfCheck) {
  const TempFolder folder;
  const auto refused = [&](const std::string& text, const std::string& words) {
    write_file_atomic(folder.path() / "a.yaml", text);
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"config", "check", "a.yaml"},
          {"parallel", "script", "--config", "a.yaml"},
          {"map", "--config", "a.yaml", ":::", "x", "--", "echo", "{}"}}) {
      const CommandResult r = run_tutti(command, folder.path());
      EXPECT_EQ(r.exit_code, 2) << command[0] << ": " << text << r.out;
      EXPECT_THAT(r.err, HasSubstr(words)) << command[0];
      EXPECT_EQ(r.out, "") << command[0];
    }
  };
  refused("paralel: {env: slurm}\n",
          "a.yaml:1:1: paralel: unknown key\n  fix: did you mean 'parallel'?");
  refused("parallel: {env: local}\nthing: 1\n", "a.yaml:2:1: thing: unknown key");
  refused("env: local\nn_workers: 2\n",
          "a.yaml:1:1: env: unknown key\n  fix: indent it under parallel:\n"
          "a.yaml:2:1: n_workers: unknown key\n  fix: indent it under parallel:");
  refused("parallel:\nenv: local\n",
          "a.yaml:2:1: env: unknown key\n  fix: indent it under parallel:");
  refused("parallel: {env: slurm_gpu}\n", "fix: did you mean 'slurm'?");
}

TEST(ParallelFile, MayBeThatOfATrainingAndHaveVariables) {
  const TempFolder folder;
  write_file_atomic(folder.path() / "a.yaml",
                    "trainer: {max_epochs: 1}\nseed: 1\nwide: 2\n"
                    "parallel: {env: local, n_workers: \"${wide}\"}\n");
  const CommandResult r =
      run_tutti({"map", "--config", "a.yaml", ":::", "x", "--", "echo", "{}"}, folder.path());
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "x\n");
}

TEST(ParallelOverride, WithoutAFileIsNamedAsItWasMeant) {
  const auto error = [](const std::string& change) {
    return run_tutti({"map", change, ":::", "x", "--", "echo", "{}"}).err;
  };
  EXPECT_THAT(error("parallel.onerror=skip"),
              HasSubstr("no key 'onerror' under 'parallel'\n  fix: did you mean 'on_error'?"));
  EXPECT_THAT(error("on_error=skip"),
              HasSubstr("no key 'on_error'\n  fix: did you mean 'parallel.on_error=skip'?"));
}

TEST(ConfigShow, WorksForEveryFileOfEveryRecipe) {
  ::setenv("CUDA_VISIBLE_DEVICES", "",
           1);  // a machine with fewer GPUs than workers would be told so
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(in_source("recipes")))) {
    if (entry.path().extension() != ".yaml" ||
        entry.path().string().find("/conf/") == std::string::npos)
      continue;
    // Data and weights of a recipe that was never run are not there.
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"show"}, {"check", "--no_files"}}) {
      std::vector<std::string> command = {"config"};
      command.insert(command.end(), words.begin(), words.end());
      command.push_back(entry.path().string());
      const CommandResult result = run_tutti(command);
      EXPECT_EQ(result.exit_code, 0) << entry.path() << "\n" << result.err;
    }
    ++count;
  }
  EXPECT_GE(count, 35);
}

TEST(Template, AnotherTokenizerIsCaughtWhereThePreprocessorDisagrees) {
  const std::string file = (fs::path(in_source("recipes/TEMPLATE/conf/training.yaml"))).string();
  const CommandResult half = run_tutti({"config", "check", file, "tokenizer.model_type=word"});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err, HasSubstr("got 'bpe', but tokenizer.model_type is 'word'"));
  const CommandResult whole =
      run_tutti({"config", "check", "--no_files", file, "tokenizer.model_type=word",
                 "~tokenizer.vocab_size", "dataset.preprocessor.token_type=word"});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
}

TEST(ConfigShow, ShowsDefaultsAndChosenBlockAsTheProgramsSeeThem) {
  const fs::path file = fs::path(in_source("recipes/TEMPLATE/conf/training.yaml"));
  const Json shown =
      parse_json(run_tutti({"config", "show", file.string(), "--json", "seed=3"}).out, "show");
  EXPECT_EQ(shown["seed"], 3);
  EXPECT_TRUE(shown["dataloader"]["train"].contains("iter_factory"));
  EXPECT_TRUE(fs::path(shown["recipe_dir"].get<std::string>()).is_absolute());
}

}  // namespace
}  // namespace tutti::config
