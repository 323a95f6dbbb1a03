// The whole way on a handful of utterances: two ranks train, two workers decode, results are
// scored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tests/places.h"
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
    fs::copy(fs::path(in_source("recipes/digits/conf")), folder_.path() / "conf");
  }

  CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), in_bin("tutti"));
    return run_command({.argv = words, .cwd = folder_.path(), .timeout = std::chrono::minutes(3)});
  }
  // The same on a terminal: `out` is all that it shows.
  CommandResult run_on_terminal(std::vector<std::string> words) {
    words.insert(words.begin(), in_bin("tutti"));
    const std::string line = "stty cols 130; exec " + Command{.argv = words}.describe();
    return run_command({.argv = {"script", "-qec", line, "/dev/null"},
                        .env = {{"TERM", "xterm"}, {"NO_COLOR", "1"}},
                        .cwd = folder_.path(),
                        .timeout = std::chrono::minutes(3)});
  }
  static std::vector<std::string> all_stages() {
    return {"run",
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
            "conf/training.yaml",
            "--inference_config",
            "conf/inference.yaml",
            "--metrics_config",
            "conf/metrics.yaml",
            "create_dataset.num_train=24",
            "create_dataset.num_valid=6",
            "create_dataset.num_test=8",
            "trainer.max_epochs=3",
            "model.encoder_conf.num_blocks=1"};
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

// A line without what differs from run to run: time, numbers, their units, how many workers came in time.
std::string shape_of(std::string line) {
  static const std::vector<std::pair<std::regex, std::string>> kDiffers = {
      {std::regex("\x1b\\[K"), ""},
      {std::regex("^[0-9:]{8} "), ""},
      {std::regex("[0-9][0-9.]*(e-[0-9]+)?"), "#"},
      {std::regex("#(m#s|h#m| ms| s)"), "#s"},
      {std::regex("# ([kM]|KiB|MiB)\\b"), "#"},
      {std::regex("(# of )?# workers?( \\(busy #-# %\\))?"), "# workers"},
      {std::regex(" \\*$"), ""},
      {std::regex(" +"), " "}};
  for (const auto& [what, with] : kDiffers) line = std::regex_replace(line, what, with);
  return std::string(trim(line));
}

// Of the recipe's parts of the page; bars come and go with the machine's speed.
std::vector<std::string> lines_of_the_terminal_page() {
  std::vector<std::string> lines;
  bool inside = false;
  const std::string page = read_file(fs::path(in_source("docs/terminal.md")));
  for (const auto& line : split(page.substr(0, page.find("## A command per item")), '\n'))
    if (line.starts_with("```"))
      inside = !inside;
    else if (inside && !line.starts_with("["))
      lines.push_back(line);
  return lines;
}

TEST_F(Recipe, GoesFromNothingToErrorRatesAndSkipsWhatIsDone) {
  const CommandResult first = run_on_terminal(all_stages());
  ASSERT_TRUE(first.ok()) << first.describe();
  std::set<std::string> shown;
  for (const auto& line : split(first.out, '\n'))
    for (const auto& part : split(line, '\r')) shown.insert(shape_of(part));
  for (const auto& line : lines_of_the_terminal_page())
    EXPECT_EQ(shown.count(shape_of(line)), 1U)
        << "docs/terminal.md: " << line << "\n(" << shape_of(line) << ") is not what is shown:\n"
        << join({shown.begin(), shown.end()}, "\n");
  const std::string inference = "exp/training/inference/";
  EXPECT_EQ(split(trim(read(inference + "test_voices/results.jsonl")), '\n').size(), 8U);
  EXPECT_EQ(split(trim(read(inference + "test_texts/hyp.scp")), '\n').size(), 8U);
  const Json metrics = parse_json(read(inference + "metrics.json"), "metrics.json");
  EXPECT_EQ(metrics["espnet3.systems.asr.metrics.wer.WER"]["test_voices"]["utterances"], 8);
  EXPECT_THAT(read("exp/training/report.html"), HasSubstr("<svg"));
  EXPECT_THAT(read("exp/training/model_pack/README.md"), HasSubstr("test_voices"));

  const CommandResult second = run(all_stages());
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
