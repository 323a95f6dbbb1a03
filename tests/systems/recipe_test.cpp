// The whole way on a handful of utterances: two ranks train, two workers decode, results are
// scored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The digits recipe with its folders in a scratch place and its sizes cut down.
class Recipe : public testing::Test {
 protected:
  void SetUp() override {
    fs::copy(fs::path(TUTTI_SOURCE_DIR) / "recipes/digits/conf", folder_.path() / "conf");
  }

  CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
    return run_command({.argv = words, .timeout = std::chrono::minutes(3)});
  }
  CommandResult run_all() {
    const std::string conf = (folder_.path() / "conf").string();
    return run({"run",
                "--stages",
                "create_dataset",
                "validate_dataset",
                "train_tokenizer",
                "collect_stats",
                "train",
                "infer",
                "measure",
                "pack_model",
                "--training_config",
                conf + "/training.yaml",
                "--inference_config",
                conf + "/inference.yaml",
                "--metrics_config",
                conf + "/metrics.yaml",
                "create_dataset.num_train=24",
                "create_dataset.num_valid=6",
                "create_dataset.num_test=8",
                "trainer.max_epochs=3",
                "model.encoder_conf.num_blocks=1"});
  }
  std::string read(const std::string& path) { return read_file(folder_.path() / path); }

  TempFolder folder_;
};

// What makes a variant of espeak-ng sound as it does, but for how strong its formants are.
std::set<std::string> sound_of(const fs::path& file) {
  std::set<std::string> lines;
  for (const auto& line : split(read_file(file), '\n')) {
    auto words = split_words(line);
    if (words.empty() || words[0] == "name" || words[0] == "language") continue;
    if (words[0] == "formant") words.resize(3);  // number and frequency
    lines.insert(join(words, " "));
  }
  return lines;
}

TEST_F(Recipe, TestSetsShareNeitherTextsNorVoicesWithTraining) {
  const std::string conf = (folder_.path() / "conf/training.yaml").string();
  const CommandResult result =
      run({"create_dataset", "--config", conf, "create_dataset.num_train=300",
           "create_dataset.num_valid=20", "create_dataset.num_test=60"});
  ASSERT_TRUE(result.ok()) << result.describe();
  const auto values = [&](const std::string& set, const char* key) {
    std::set<std::string> found;
    for (const auto& line : split(trim(read("data/" + set + ".jsonl")), '\n'))
      found.insert(parse_json(line, set)[key].get<std::string>());
    return found;
  };
  const CommandResult version = run_command({.argv = {"espeak-ng", "--version"}});
  const std::string at = "Data at: ";
  ASSERT_THAT(version.out, HasSubstr(at));
  const fs::path variants =
      fs::path(trim(version.out.substr(version.out.find(at) + at.size()))) / "voices/!v";
  for (const auto& [test, key] :
       {std::pair{"test_voices", "text"}, {"test_voices", "speaker"}, {"test_texts", "text"}})
    for (const char* set : {"train", "valid"})
      for (const auto& value : values(test, key))
        EXPECT_EQ(values(set, key).count(value), 0U) << test << " and " << set << ": " << value;
  for (const auto& voice : values("test_voices", "speaker")) {
    for (const auto& other : values("train", "speaker")) {
      if (!fs::exists(variants / voice) || !fs::exists(variants / other)) continue;  // of flite
      EXPECT_NE(sound_of(variants / voice), sound_of(variants / other)) << voice << ", " << other;
    }
  }
}

TEST_F(Recipe, GoesFromNothingToErrorRatesAndSkipsWhatIsDone) {
  const CommandResult first = run_all();
  ASSERT_TRUE(first.ok()) << first.describe();
  const std::string inference = "exp/training/inference/";
  EXPECT_EQ(split(trim(read(inference + "test_voices/results.jsonl")), '\n').size(), 8U);
  EXPECT_EQ(split(trim(read(inference + "test_texts/hyp.scp")), '\n').size(), 8U);
  const Json metrics = parse_json(read(inference + "metrics.json"), "metrics.json");
  EXPECT_EQ(metrics["espnet3.systems.asr.metrics.wer.WER"]["test_voices"]["utterances"], 8);
  EXPECT_THAT(read("exp/training/report.html"), HasSubstr("<svg"));
  EXPECT_THAT(read("exp/training/model_pack/README.md"), HasSubstr("test_voices"));

  const CommandResult second = run_all();
  ASSERT_TRUE(second.ok()) << second.describe();
  for (const char* stage : {"create_dataset", "train_tokenizer", "collect_stats", "train"})
    EXPECT_THAT(second.err, HasSubstr(std::string(stage) + ": up to date, skipped"));

  const auto pack = (folder_.path() / "exp/training/model_pack").string();
  const auto wav = (folder_.path() / "data/wav/test_voices_00000.wav").string();
  const CommandResult packed = run({"infer", "--model", pack, wav, "--json"});
  ASSERT_TRUE(packed.ok()) << packed.describe();
  EXPECT_EQ(parse_json(packed.out, "infer")["file"], wav);
}

}  // namespace
}  // namespace tutti::systems
