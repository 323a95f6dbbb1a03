// What was trained decides how it is decoded, trained on and packed, whatever the shared folders and the config files
// say by then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/systems/built_recipe.h"
#include "tutti/core/json.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class OwnTokens : public BuiltRecipe {
 protected:
  static constexpr const char* kPack = "exp/training_asr_transformer/model_pack/";
  static constexpr const char* kTokens = "data/bpe_30/tokens.txt";

  // Another experiment makes its tokenizer of the same size, of other text, at the same place.
  CommandResult replace_tokenizer() const {
    std::string text;  // few letters, so that thirty pieces are enough
    for (int i = 0; i < 60; ++i)
      text += "THE HAT IS THIS THAT AND THE SAND IS IN THE HAND AND IT HAS A TENT\n";
    write("other.txt", text);
    return stage("train_tokenizer",
                 {"exp_tag=other", "tokenizer.train_file=" + (path_ / "other.txt").string()});
  }
  CommandResult pack(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"pack_model", "--training_config",
                                      conf("training_asr_transformer.yaml"), "--inference_config",
                                      conf("inference.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
};

TEST_F(OwnTokens, AnotherExperimentsTokenizerChangesNothingAboutATrainedModel) {
  const std::string tokens = read(kTokens);
  EXPECT_EQ(read(std::string(kExp) + "tokens.txt"), tokens);
  EXPECT_EQ(read(std::string(kExp) + "bpe.model"), read("data/bpe_30/bpe.model"));
  const CommandResult other = replace_tokenizer();
  ASSERT_TRUE(other.ok()) << other.describe();
  EXPECT_THAT(other.err, HasSubstr("another tokenizer was here"));
  ASSERT_NE(read(kTokens), tokens);

  const CommandResult again = infer();
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, HasSubstr("test: up to date, skipped"));
  ASSERT_TRUE(infer({"inference_dir=" + (path_ / "F").string()}).ok());
  EXPECT_EQ(read("F/test/results.jsonl"), read(std::string(kInference) + "test/results.jsonl"));

  fs::remove_all(path_ / kPack);
  ASSERT_TRUE(pack().ok());
  EXPECT_EQ(read(std::string(kPack) + "tokens.txt"), tokens);
  EXPECT_EQ(read(std::string(kPack) + "bpe.model"), read(std::string(kExp) + "bpe.model"));
}

TEST_F(OwnTokens, TrainingOnWithOtherTokensIsRefusedWithTheWaysOn) {
  const std::string tokens = read(kTokens);
  ASSERT_TRUE(replace_tokenizer().ok());
  const CommandResult refused = stage("train", {"trainer.max_epochs=2"});
  EXPECT_EQ(refused.exit_code, 2) << refused.describe();
  EXPECT_THAT(refused.err, HasSubstr("model.token_list: token "));
  EXPECT_THAT(refused.err, HasSubstr("dataset.preprocessor.bpemodel: "));
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_THAT(refused.err, HasSubstr("exp_tag=NAME"));
  EXPECT_EQ(read(std::string(kExp) + "tokens.txt"), tokens);

  // The way back that it prints.
  EXPECT_THAT(refused.err, HasSubstr("goes on with the tokens it was trained with"));
  std::vector<std::string> words = {"trainer.max_epochs=2"};
  for (const auto& [key, file] : {std::pair("model.token_list", "tokens.txt"),
                                  std::pair("dataset.preprocessor.token_list", "tokens.txt"),
                                  std::pair("dataset.preprocessor.bpemodel", "bpe.model")}) {
    words.push_back(std::string(key) + "=" + (path_ / kExp / file).string());
    EXPECT_THAT(refused.err, HasSubstr(words.back()));
  }
  const CommandResult more = stage("train", words);
  EXPECT_TRUE(more.ok()) << more.describe();
  EXPECT_EQ(read(std::string(kExp) + "tokens.txt"), tokens);

  // With its own tokenizer made again first, there is nothing to refuse.
  const CommandResult both = run({"run", "--stages", "train_tokenizer", "train",
                                  "--training_config", conf("training_asr_transformer.yaml")});
  EXPECT_TRUE(both.ok()) << both.describe();
  EXPECT_EQ(read(kTokens), tokens);

  // Afresh with the new ones: then they are the model's.
  ASSERT_TRUE(replace_tokenizer().ok());
  ASSERT_TRUE(stage("train", {"--force"}).ok());
  EXPECT_EQ(read(std::string(kExp) + "tokens.txt"), read(kTokens));
  EXPECT_EQ(read(std::string(kExp) + "tokens.txt.1"), tokens);
}

// model.vocab_size of the config is 30, the list that it names has 50 tokens by now.
TEST_F(OwnTokens, AListOfAnotherSizeIsJudgedOnlyByTrainingAndTrainTokenizerMendsIt) {
  const std::string tokens = read(kTokens);
  const std::string place = (path_ / "data/bpe_30").string();
  ASSERT_TRUE(stage("train_tokenizer",
                    {"exp_tag=other", "tokenizer.vocab_size=50", "tokenizer.save_path=" + place})
                  .ok());
  ASSERT_EQ(num_lines(kTokens), 50U);

  const CommandResult again = infer({"inference_dir=" + (path_ / "F").string()});
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_EQ(read("F/test/results.jsonl"), read(std::string(kInference) + "test/results.jsonl"));
  const CommandResult measured =
      run({"measure", "--training_config", conf("training_asr_transformer.yaml"),
           "--inference_config", conf("inference.yaml"), "--metrics_config", conf("metrics.yaml")});
  EXPECT_TRUE(measured.ok()) << measured.describe();
  const CommandResult packed = pack({"--force"});
  EXPECT_TRUE(packed.ok()) << packed.describe();
  EXPECT_EQ(read(std::string(kPack) + "tokens.txt"), tokens);

  // Training uses the list. What was trained has its own; another experiment needs one that fits.
  const CommandResult checked = run({"config", "check", conf("training_asr_transformer.yaml")});
  EXPECT_TRUE(checked.ok()) << checked.describe();
  EXPECT_THAT(checked.out + checked.err, HasSubstr("50 tokens: training refuses that"));
  const CommandResult more = stage("train", {"trainer.max_epochs=2"});
  EXPECT_EQ(more.exit_code, 2) << more.describe();
  EXPECT_THAT(more.err, HasSubstr("goes on with the tokens it was trained with"));
  for (const char* word : {"exp_tag=third", "--force"}) {
    const CommandResult refused = stage("train", {word});
    EXPECT_EQ(refused.exit_code, 2) << refused.describe();
    EXPECT_THAT(refused.err,
                HasSubstr("model.vocab_size: got 30, but the token list has 50 tokens"));
    EXPECT_THAT(refused.err, HasSubstr("run the train_tokenizer stage again, or remove"));
  }
  EXPECT_FALSE(has("exp/third"));
  EXPECT_TRUE(has(std::string(kExp) + "checkpoints/last"));

  const CommandResult mended =
      run({"run", "--stages", "train_tokenizer", "train", "--training_config",
           conf("training_asr_transformer.yaml"), "trainer.max_epochs=2"});
  EXPECT_TRUE(mended.ok()) << mended.describe();
  EXPECT_EQ(read(kTokens), tokens);
}

TEST_F(OwnTokens, APackIsOfWhatWasTrainedAndOneThatCannotBeLoadedReplacesNothing) {
  const std::string config = read(std::string(kPack) + "config.yaml");
  // A config that was edited since: the pack is of the weights that are there.
  const CommandResult edited = pack({"model.encoder_conf.output_size=4", "trainer.max_epochs=7"});
  ASSERT_TRUE(edited.ok()) << edited.describe();
  EXPECT_THAT(edited.err, HasSubstr("pack_model: up to date, skipped"));
  const CommandResult forced = pack({"model.encoder_conf.output_size=4", "--force"});
  ASSERT_TRUE(forced.ok()) << forced.describe();
  EXPECT_EQ(read(std::string(kPack) + "config.yaml"), config);

  // Weights and config of an experiment that do not fit each other.
  std::string broken = read(std::string(kExp) + "config.yaml");
  const auto at = broken.find("output_size: 2");
  ASSERT_NE(at, std::string::npos);
  broken.replace(at, std::strlen("output_size: 2"), "output_size: 4");
  write(std::string(kExp) + "config.yaml", broken);
  const CommandResult refused = pack();
  EXPECT_EQ(refused.exit_code, 3) << refused.describe();
  EXPECT_THAT(refused.err, HasSubstr("cannot be loaded"));
  EXPECT_EQ(read(std::string(kPack) + "config.yaml"), config);
  const std::string audio =
      parse_json(split(read("data/test.jsonl"), '\n')[0], "test.jsonl")["audio"];
  const CommandResult said =
      run({"infer", "--model", (path_ / kPack).string(), (path_ / "data" / audio).string()});
  EXPECT_TRUE(said.ok()) << said.describe();
}

}  // namespace
}  // namespace tutti::systems
