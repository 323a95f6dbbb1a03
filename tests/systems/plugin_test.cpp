// A recipe's own library (recipe_plugin.cpp) in the built program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;

const std::string kPlugins = "plugins: [" + in_bin("libtutti_recipe_plugin.so") + "]\n";

class RecipePlugin : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    write_file_atomic(folder_.path() / name, kPlugins + text);
    return (folder_.path() / name).string();
  }
  CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), in_bin("tutti"));
    return run_command({.argv = words, .cwd = folder_.path(), .timeout = std::chrono::minutes(3)});
  }
  TempFolder folder_;
};

TEST_F(RecipePlugin, ItsStagesAreListedAndRunInTheirPlace) {
  const std::string config = write("training.yaml", "exp_tag: a\n");
  const CommandResult help = run({"run", "--help", "--training_config", config});
  EXPECT_THAT(help.out, HasSubstr("10 summarise"));
  EXPECT_LT(help.out.find("measure"), help.out.find("summarise"));
  EXPECT_LT(help.out.find("summarise"), help.out.find("pack_model"));
  const CommandResult result = run({"run", "--stages", "summarise", "--training_config", config});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(read_file(folder_.path() / "exp/a/summary.txt"), "well done\n");
}

TEST_F(RecipePlugin, ItIsLoadedByConfigCheckToo) {
  const std::string config =
      write("training.yaml", "exp_tag: a\nmodel: {_target_: pull, target: 3}\n");
  const CommandResult result = run({"config", "check", config});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run({"config", "show", config}).exit_code, 0);
  const CommandResult slip = run({"config", "check", config, "model._target_=pul"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, HasSubstr("did you mean 'pull'?"));
}

TEST_F(RecipePlugin, ItsCorpusIsBuiltByName) {
  const std::string config =
      write("training.yaml",
            "create_dataset: {count: 5}\n"
            "dataset:\n"
            "  train: [{data_src: silence/asr, data_src_args: {split: train}}]\n"
            "  valid: [{data_src: silence/asr, data_src_args: {split: train}}]\n");
  const CommandResult result = run({"create_dataset", "--config", config});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(read_file(folder_.path() / "data/train.jsonl"), HasSubstr("s4"));
}

TEST_F(RecipePlugin, TheCorpusAndStageOfTheDocsWork) {
  const auto file = folder_.path() / "t.yaml";
  write_file_atomic(file,
                    "plugins: [" + in_bin("libtutti_docs_plugin_corpus.so") +
                        "]\nrecipe_dir: " + folder_.path().string() +
                        "\n"
                        "create_dataset: {recordings: wavs}\n"
                        "dataset:\n"
                        "  train: [{data_src: my_corpus/asr, data_src_args: {split: train}}]\n"
                        "  valid: [{data_src: my_corpus/asr, data_src_args: {split: valid}}]\n");
  const CommandResult result =
      run({"run", "--stages", "create_dataset", "score", "--training_config", file.string()});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(read_file(folder_.path() / "data/valid.jsonl"), HasSubstr("wavs/1.wav"));
  EXPECT_EQ(read_file(folder_.path() / "exp/t/score.txt"), "4.5\n");
}

TEST_F(RecipePlugin, ItsRunnerDoesTheItemsOfInferOnWorkers) {
  write_file_atomic(folder_.path() / "items.jsonl",
                    "{\"id\": \"a\", \"audio\": \"x.wav\", \"text\": \"\"}\n"
                    "{\"id\": \"b\", \"audio\": \"x.wav\", \"text\": \"\"}\n"
                    "{\"id\": \"c\", \"audio\": \"x.wav\", \"text\": \"\"}\n");
  const std::string config =
      write("inference.yaml",
            "exp_tag: a\n"
            "dataset: {test: [{name: all, data_src_args: {manifest: " +
                (folder_.path() / "items.jsonl").string() +
                "}}]}\n"
                "provider: {_target_: LengthProvider, params: {unit: frames}}\n"
                "runner: {_target_: LengthRunner}\n"
                "parallel: {env: local, n_workers: 2}\n");
  const CommandResult result = run({"infer", "--config", config});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(read_file(folder_.path() / "exp/a/inference/all/length.scp"),
            "item0 0 frames\nitem1 1 frames\nitem2 4 frames\n");
  EXPECT_THAT(result.err, HasSubstr("all: 3 items in "));  // it heard no audio
  EXPECT_EQ(result.err.find("real-time factor"), std::string::npos) << result.err;
  // `throw 5` where the env is built is the plugin's own, and of an item its failure.
  const CommandResult built = run({"infer", "--config", config, "provider.params.unit=throws"});
  EXPECT_EQ(built.exit_code, 3) << built.describe();
  EXPECT_THAT(built.err, HasSubstr("LengthProvider: it threw int, which is no exception"));
  const CommandResult item =
      run({"infer", "--config", config, "provider.params.unit=throws later"});
  EXPECT_EQ(item.exit_code, 7) << item.describe();
  EXPECT_THAT(item.err, HasSubstr("LengthRunner: it threw int, which is no exception"));
}

TEST_F(RecipePlugin, OnesOnTheCommandLineAreRefusedNotIgnored) {
  const std::string config = write("training.yaml", "exp_tag: a\n");
  for (const auto& words : {std::vector<std::string>{"config", "check", config},
                            {"run", "--stages", "train", "--training_config", config}}) {
    std::vector<std::string> command = words;
    command.push_back("+plugins=[libother.so]");
    const CommandResult result = run(command);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_THAT(result.err, HasSubstr("name them in a file"));
  }
}

TEST_F(RecipePlugin, ALibraryThatIsNotThereIsAConfigError) {
  write_file_atomic(folder_.path() / "t.yaml", "plugins: [libnowhere.so]\n");
  const CommandResult result =
      run({"run", "--stages", "train", "--training_config", (folder_.path() / "t.yaml").string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("libnowhere.so"));
}

}  // namespace
}  // namespace tutti::systems
