// ESPnet3's smallest recipe, whole: all stages, killed at every point, on one worker and on two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/places.h"
#include "tests/systems/recipe_folder.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kExp = "exp/training_asr_transformer/";

class MiniAn4 : public testing::Test {
 protected:
  void SetUp() override {
    if (shared_archive("mini_an4.tar.gz").empty())
      GTEST_SKIP() << "../shared/data/mini_an4.tar.gz is not here";
  }
  static std::vector<std::string> all_stages(const RecipeFolder& recipe,
                                             std::vector<std::string> overrides = {}) {
    std::vector<std::string> words = {"run",
                                      "--stages",
                                      "all",
                                      "--training_config",
                                      recipe.conf("training_asr_transformer.yaml"),
                                      "--inference_config",
                                      recipe.conf("inference.yaml"),
                                      "--metrics_config",
                                      recipe.conf("metrics.yaml"),
                                      "create_dataset.source=" + shared_archive("mini_an4.tar.gz")};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }
  static std::size_t num_lines(const std::string& text) { return split(trim(text), '\n').size(); }
};

TEST_F(MiniAn4, AllStagesRunAndASecondRunSkipsThem) {
  const RecipeFolder recipe("mini_an4");
  const CommandResult first = recipe.run(all_stages(recipe));
  ASSERT_TRUE(first.ok()) << first.describe();
  EXPECT_THAT(first.err, HasSubstr("[create_dataset] 1 of 8: build the corpus"));
  EXPECT_THAT(first.err, HasSubstr("[train] 5 of 8: train the model"));
  EXPECT_EQ(num_lines(recipe.read("data/train.jsonl")), 4U);
  EXPECT_EQ(num_lines(recipe.read("data/bpe_30/tokens.txt")), 30U);
  EXPECT_EQ(num_lines(recipe.read(std::string(kExp) + "inference/test/hyp.scp")), 2U);
  EXPECT_THAT(recipe.read(std::string(kExp) + "inference/valid/ref.scp"), HasSubstr("fash-"));
  EXPECT_TRUE(recipe.has(std::string(kExp) + "model_pack/bpe.model"));
  EXPECT_TRUE(recipe.has(std::string(kExp) + "report.html"));

  const CommandResult second = recipe.run(all_stages(recipe));
  ASSERT_TRUE(second.ok()) << second.describe();
  for (const char* stage : {"create_dataset", "validate_dataset", "train_tokenizer",
                            "collect_stats", "train", "measure", "pack_model"})
    EXPECT_THAT(second.err, HasSubstr(std::string(stage) + ": up to date, skipped"));

  // Another learning rate is another training, of the same data.
  const CommandResult third = recipe.run(all_stages(recipe, {"optimizer.lr=0.004", "exp_tag=b"}));
  ASSERT_TRUE(third.ok()) << third.describe();
  EXPECT_THAT(third.err, HasSubstr("collect_stats: up to date, skipped"));
  EXPECT_THAT(third.err, Not(HasSubstr("train: up to date, skipped")));

  const CommandResult quiet = recipe.run(all_stages(recipe, {"exp_tag=c", "--quiet"}));
  ASSERT_TRUE(quiet.ok()) << quiet.describe();
  EXPECT_THAT(quiet.err, Not(HasSubstr(" of 8: ")));
  EXPECT_THAT(quiet.err, Not(HasSubstr(" items ("))) << "the progress line of collect_stats, infer";
  EXPECT_THAT(quiet.out, HasSubstr("WER")) << "results are no chatter";
}

// The builder comes with the programs: a copy finds it under any name, and the archive beside conf/.
TEST_F(MiniAn4, ACopyUnderAnotherNameBuildsItsCorpus) {
  const RecipeFolder recipe("mini_an4");
  const fs::path copy = recipe.path().parent_path() / "recipes/my first recipe";
  fs::create_directory(copy.parent_path());
  fs::copy(recipe.path(), copy, fs::copy_options::recursive);
  const std::string training = (copy / "conf/training_asr_transformer.yaml").string();
  const CommandResult without = recipe.run({"create_dataset", "--config", training});
  EXPECT_EQ(without.exit_code, 2) << without.describe();
  EXPECT_THAT(without.err, HasSubstr("egs2/mini_an4/asr1"));
  fs::copy_file(shared_archive("mini_an4.tar.gz"), copy / "mini_an4.tar.gz");
  const CommandResult built = recipe.run({"create_dataset", "--config", training});
  ASSERT_TRUE(built.ok()) << built.describe();
  EXPECT_EQ(num_lines(read_file(copy / "data/train.jsonl")), 4U);
}

TEST_F(MiniAn4, TheCheckKnowsCorporaAndTheirKeys) {
  const RecipeFolder recipe("mini_an4");
  const std::string training = recipe.conf("training_asr_transformer.yaml");
  const CommandResult name =
      recipe.run({"config", "check", training, "dataset.train.0.data_src=mini_an5/asr"});
  EXPECT_EQ(name.exit_code, 2) << name.describe();
  EXPECT_THAT(name.err, HasSubstr("did you mean 'mini_an4'?"));
  const CommandResult key = recipe.run({"config", "check", training, "+create_dataset.dev_sise=2"});
  EXPECT_EQ(key.exit_code, 2) << key.describe();
  EXPECT_THAT(key.err, HasSubstr("did you mean 'dev_size'?"));
  const CommandResult split =
      recipe.run({"config", "check", training, "dataset.train.0.data_src_args.split=trian"});
  EXPECT_EQ(split.exit_code, 2) << split.describe();
  EXPECT_THAT(split.err, HasSubstr("got 'trian', but mini_an4/asr makes train, valid, test"));
  EXPECT_THAT(split.err, HasSubstr("did you mean 'train'?"));
  const CommandResult ran = recipe.run(
      {"create_dataset", "--config", training, "dataset.train.0.data_src_args.split=trian"});
  EXPECT_EQ(ran.exit_code, 2) << ran.describe();
  EXPECT_THAT(ran.err, HasSubstr("did you mean 'train'?"));
  const CommandResult source =
      recipe.run({"config", "check", training, "dataset.train.0.data_src=jsnol"});
  EXPECT_EQ(source.exit_code, 2) << source.describe();
  EXPECT_THAT(source.err, HasSubstr("did you mean 'jsonl'?"));
}

TEST_F(MiniAn4, KilledAnywhereItContinuesAndTheResultIsTheSame) {
  const std::vector<std::string> overrides = {"num_device=2", "trainer.max_epochs=20",
                                              "parallel.n_workers=2"};
  const RecipeFolder calm("mini_an4");
  const CommandResult whole = calm.run(all_stages(calm, overrides));
  ASSERT_TRUE(whole.ok()) << whole.describe();

  const RecipeFolder recipe("mini_an4");
  const auto words = all_stages(recipe, overrides);
  const auto has_any = [&](const std::string& folder, const std::string& part) {
    std::error_code gone;  // files come and go while we look
    for (const auto& entry : fs::directory_iterator(recipe.path() / folder, gone))
      if (entry.path().filename().string().find(part) != std::string::npos) return true;
    return false;
  };
  const std::vector<std::pair<const char*, std::function<bool()>>> points = {
      {"unpacking", [&] { return recipe.has("data/source"); }},
      {"tokenizer", [&] { return recipe.has("data/bpe_30"); }},
      {"statistics", [&] { return recipe.has("exp/stats/.collect"); }},
      {"first checkpoint",
       [&] { return has_any(std::string(kExp) + "checkpoints", "step-00000003"); }},
      {"later checkpoint",
       [&] { return has_any(std::string(kExp) + "checkpoints", "step-00000017"); }},
      {"averaging", [&] { return has_any(std::string(kExp) + "checkpoints", ".ave_"); }},
      {"decoding", [&] { return recipe.has(std::string(kExp) + "inference/valid"); }},
      {"second set", [&] { return recipe.has(std::string(kExp) + "inference/test"); }},
      {"scores", [&] { return recipe.has(std::string(kExp) + "inference/metrics.json"); }},
  };
  int kills = 0;
  for (const auto& [name, reached] : points) kills += recipe.run_until(words, reached);
  EXPECT_GE(kills, 7);  // a point may have been passed before we saw it

  const CommandResult last = recipe.run(words);
  ASSERT_TRUE(last.ok()) << last.describe();
  for (const char* stage :
       {"create_dataset", "validate_dataset", "train_tokenizer", "collect_stats", "train"})
    EXPECT_THAT(last.err, HasSubstr(std::string(stage) + ": up to date, skipped"));
  for (const char* file :
       {"checkpoints/valid.loss.ave_10best.safetensors", "inference/valid/hyp.scp",
        "inference/test/hyp.scp", "inference/test/ref.scp", "inference/metrics.json"})
    EXPECT_EQ(recipe.read(std::string(kExp) + file), calm.read(std::string(kExp) + file)) << file;
}

TEST_F(MiniAn4, OneWorkerAndTwoWriteTheSameBytes) {
  const RecipeFolder recipe("mini_an4");
  ASSERT_TRUE(recipe.run(all_stages(recipe)).ok());
  const auto infer = [&](const std::string& workers, const std::string& folder) {
    const CommandResult result = recipe.run(
        {"infer", "--inference_config", recipe.conf("inference.yaml"), "--training_config",
         recipe.conf("training_asr_transformer.yaml"),
         "create_dataset.source=" + shared_archive("mini_an4.tar.gz"),
         "parallel.n_workers=" + workers, "inference_dir=" + (recipe.path() / folder).string()});
    ASSERT_TRUE(result.ok()) << result.describe();
  };
  infer("1", "one");
  infer("2", "two");
  for (const char* file : {"valid/results.jsonl", "test/results.jsonl", "test/hyp.scp"})
    EXPECT_EQ(recipe.read(std::string("one/") + file), recipe.read(std::string("two/") + file));
}

TEST_F(MiniAn4, ThePageAnswersWithThePackedModel) {
  const RecipeFolder recipe("mini_an4");
  ASSERT_TRUE(recipe.run(all_stages(recipe)).ok());
  write_file_atomic(recipe.path() / "conf/demo.yaml",
                    "recipe_dir: ${config_path:..}\nexp_tag: training_asr_transformer\n"
                    "server: {port: 0}\n");
  Process page =
      Process::start({.argv = {in_bin("tutti"), "demo", "--config", recipe.conf("demo.yaml")},
                      .cwd = recipe.path(),
                      .stdout_path = recipe.path() / "demo.out"});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (
      (!recipe.has("demo.out") || recipe.read("demo.out").find("(Ctrl-C") == std::string::npos) &&
      !page.poll() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  const std::string said = recipe.read("demo.out");
  const std::size_t begin = said.find("http://127.0.0.1:");
  ASSERT_NE(begin, std::string::npos) << said;
  const std::string url = said.substr(begin, said.find("/ (") - begin);
  fs::copy_file(recipe.path() / "data/source/downloads/an4/wav/an4test_clstk/fcaw/cen8-fcaw-b.sph",
                recipe.path() / "talk.wav");
  // The line as docs/decoding.md has it, but for the port.
  std::string line = "curl --data-binary @talk.wav http://127.0.0.1:8000/api/recognize";
  EXPECT_THAT(read_file(fs::path(in_source("docs/decoding.md"))), HasSubstr("\n" + line + "\n"));
  line.replace(line.find("http:"), std::string("http://127.0.0.1:8000").size(), url);
  const auto type = [&](const std::string& typed) {
    return run_command(
        {.argv = {"bash", "-c", typed}, .env = {{"no_proxy", "*"}}, .cwd = recipe.path()});
  };
  const auto answer = type(line);
  const Json result = parse_json(answer.out, "answer");
  EXPECT_TRUE(result["text"].is_string()) << answer.out;
  EXPECT_GT(result["seconds"].get<double>(), 1.0);
  EXPECT_THAT(run_command({.argv = {"curl", "-s", "--noproxy", "*", url + "/"}}).out,
              HasSubstr("<html"));
  EXPECT_EQ(
      parse_json(type("curl -F file=@talk.wav " + url + "/api/recognize").out, "form")["text"],
      result["text"]);
  for (const char* nothing : {"-X POST", "-d ''"})
    EXPECT_THAT(
        type(std::string("curl --max-time 20 ") + nothing + " " + url + "/api/recognize").out,
        HasSubstr("curl --data-binary @FILE.wav"))
        << nothing;
  const std::string port = url.substr(url.rfind(':') + 1);
  const auto second =
      recipe.run({"demo", "--config", recipe.conf("demo.yaml"), "server.port=" + port});
  EXPECT_EQ(second.exit_code, 4) << second.describe();
  EXPECT_THAT(second.err, HasSubstr(":" + port + ": another program listens there"));
  EXPECT_THAT(second.err, HasSubstr("server.port"));
  EXPECT_TRUE(page.terminate(std::chrono::seconds(10)).ok());
}

}  // namespace
}  // namespace tutti::systems
