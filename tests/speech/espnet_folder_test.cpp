// Published folders of ESPnet with random weights, decoded by ESPnet's own program and by us. Made by
// tools/make_espnet_folders.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/places.h"
#include "tests/systems/espnet/sound.h"
#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/speech/decoding/speech2text.h"
#include "tutti/speech/espnet/flat_config.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/model_config.h"

namespace tutti::speech {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path folders() { return fs::path(in_source("tests/systems/espnet")); }

Json expected_of(const std::string& family) {
  const fs::path file = folders() / (family + ".json");
  return parse_json(read_file(file), file.string());
}

Speech2Text load(const std::string& family, Speech2TextOptions options) {
  const ModelFolder folder = open_model_folder(folders() / family);
  config::Problems problems;
  const config::Node training = read_training_config(folder, problems);
  const AsrSettings settings = read_asr_settings(training, problems);
  EXPECT_EQ(problems.describe(), "");
  EXPECT_TRUE(problems.warnings().empty());
  AsrModel model(Build{}, settings);
  load_published_weights(*model, read_state_dict(folder.weights), folder.weights.string());
  const std::string type = training["dataset"]["preprocessor"]["token_type"].raw();
  return Speech2Text(model, {TokenList(settings.token_list), make_tokenizer({.token_type = type})},
                     std::move(options));
}

Speech2TextOptions options_of(const Json& given) {
  Speech2TextOptions o{.device = "cpu", .batch_size = 3, .beam_size = given.value("beam_size", 5)};
  o.ctc_weight = given.value("ctc_weight", 0.0);
  o.maxlenratio = given.value("maxlenratio", o.ctc_weight < 1 ? -10.0 : 0.0);
  o.lang_sym = given.value("lang_sym", "");
  o.task_sym = given.value("task_sym", "<asr>");
  o.predict_time = given.value("predict_time", false);
  if (given.contains("transducer_conf")) {
    o.transducer_conf.search_type = given["transducer_conf"]["search_type"];
    o.transducer_conf.score_norm = given["transducer_conf"]["score_norm"].get<bool>();
  }
  return o;
}

TEST(EspnetFolder, EveryFamilySaysWhatEspnetSays) {
  for (const std::string family : {"conformer", "ctc", "transducer"}) {
    const Json expected = expected_of(family);
    for (const Json& c : expected["cases"]) {
      Speech2Text recognise = load(family, options_of(c["options"]));
      const auto found = recognise.decode(test_sounds("asr", 32));
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].nbest[0].text, without_second_end(c["text"][i]))
            << family << c["options"] << i;
        const double score = c["score"][i];
        if (family != "transducer") {
          EXPECT_NEAR(found[i].nbest[0].score.value(), score, 1e-4 * std::abs(score))
              << family << i;
        }
      }
    }
  }
}

TEST(EspnetFolder, OwsmSaysWhatEspnetSays) {
  const Json expected = expected_of("owsm");
  for (Json c : expected["cases"]) {
    if (!c["options"].contains("lang_sym")) c["options"]["lang_sym"] = "<eng>";
    Speech2Text recognise = load("owsm", options_of(c["options"]));
    const auto found = recognise.decode(test_sounds("s2t", 32));
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].nbest[0].text, c["text"][i].get<std::string>()) << c["options"] << i;
      EXPECT_EQ(found[i].nbest[0].full_text, c["full"][i].get<std::string>()) << c["options"] << i;
      const double score = c["score"][i];
      EXPECT_NEAR(found[i].nbest[0].score.value(), score, 1e-4 * std::abs(score)) << i;
    }
  }
  Speech2TextOptions options{.device = "cpu", .batch_size = 4, .beam_size = 1};
  options.ctc_weight = 0;
  options.maxlenratio = -8;
  options.lang_sym = "<eng>";
  options.text_prev = "one two";
  const auto after = load("owsm", options).decode(test_sounds("s2t"));
  for (std::size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(after[i].nbest[0].text, expected["text_prev"][i].get<std::string>());
}

TEST(EspnetFolder, OwsmFollowsItsTimesThroughALongRecording) {
  const Json expected = expected_of("owsm");
  const std::vector<float> recording = test_sound(5, 16000 * 75);
  for (const bool conditioned : {false, true}) {
    Speech2TextOptions options{.device = "cpu", .beam_size = 2};
    options.ctc_weight = 0;
    options.maxlenratio = -12;
    options.lang_sym = "<eng>";
    options.predict_time = true;
    options.condition_on_prev_text = conditioned;
    if (conditioned) options.text_prev = "six";
    const auto found = load("owsm", options).decode({recording, recording})[1].segments;
    const Json& theirs = expected[conditioned ? "long_conditioned" : "long"];
    ASSERT_EQ(found.size(), theirs.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_DOUBLE_EQ(found[i].begin, theirs[i][0]);
      EXPECT_DOUBLE_EQ(found[i].end, theirs[i][1]);
      // Marks that are no times stay in ESPnet's text.
      std::string text = theirs[i][2];
      if (const auto at = text.find("<sop> "); at != std::string::npos) text.erase(at, 6);
      EXPECT_EQ(found[i].text, text);
    }
  }
}

TEST(EspnetFolder, OwsmKnowsTheLanguage) {
  const Json expected = expected_of("owsm")["languages"];
  Speech2TextOptions options{.device = "cpu", .batch_size = 3, .beam_size = 1};
  options.ctc_weight = 0;
  options.maxlenratio = -4;
  options.lang_sym = "auto";
  Speech2Text recognise = load("owsm", options);
  const auto sounds = test_sounds("s2t");
  const auto guesses = recognise.languages({sounds.begin(), sounds.end()}, 2);
  for (std::size_t i = 0; i < sounds.size(); ++i) {
    ASSERT_EQ(guesses[i].size(), 2U);
    for (std::size_t k = 0; k < 2; ++k) {
      EXPECT_EQ(guesses[i][k].language, expected[i][k][0].get<std::string>());
      EXPECT_NEAR(guesses[i][k].probability, expected[i][k][1].get<double>(), 1e-5);
    }
    EXPECT_EQ(recognise.decode({sounds[i]})[0].nbest[0].language,
              expected[i][0][0].get<std::string>());
  }
}

// ---- what folders look like

// A copy whose config a test may spoil.
class Folder {
 public:
  explicit Folder(const std::string& family) : path_(folder_.path() / family) {
    fs::copy(folders() / family, path_, fs::copy_options::recursive);
  }
  const fs::path& path() const { return path_; }
  fs::path config() const { return open_model_folder(path_).config; }
  void replace(const std::string& was, const std::string& is) const {
    std::string text = read_file(config());
    const std::size_t at = text.find(was);
    ASSERT_NE(at, std::string::npos) << was;
    write_file_atomic(config(), text.replace(at, was.size(), is));
  }
  std::string problems() const {
    config::Problems problems;
    const config::Node training = read_training_config(open_model_folder(path_), problems);
    if (problems.empty()) read_asr_settings(training, problems);
    std::string warnings;
    for (const auto& warning : problems.warnings()) warnings += "warning " + warning.describe();
    return problems.describe() + warnings;
  }

 private:
  TempFolder folder_;
  fs::path path_;
};

TEST(EspnetFolder, PathsOfAnotherMachineAreFoundByTheirEnd) {
  const Folder folder("conformer");
  const std::string stats = "exp/asr_stats_raw/train/feats_stats.npz";
  folder.replace(stats, "/home/them/.cache/espnet/1234/" + stats);
  config::Problems problems;
  const config::Node training = read_training_config(open_model_folder(folder.path()), problems);
  EXPECT_EQ(training["model"]["normalize_conf"]["stats_file"].raw(),
            (folder.path() / stats).string());
  EXPECT_EQ(problems.describe(), "");
  // Without the file, the numbers come from the weights.
  fs::remove(folder.path() / stats);
  EXPECT_EQ(folder.problems(), "");
}

TEST(EspnetFolder, TokensAreTextWhateverYamlCallsThem) {
  config::Problems problems;
  const config::Node training =
      read_training_config(open_model_folder(folders() / "conformer"), problems);
  const auto tokens = read_asr_settings(training, problems).token_list;
  EXPECT_THAT(tokens, testing::ElementsAre("<blank>", "<unk>", "<space>", "E", "T", "y", "n", "1e3",
                                           "'", "null", "~", "é", "", "13_15", "on", ":", "#", "-",
                                           "<sos/eos>"));
}

// A folder that ESPnet has unpacked is written anew: keys sorted, everything but ASCII escaped.
TEST(EspnetFolder, EscapesOfARewrittenConfig) {
  const auto list = config::parse_yaml(
      "- \"\\u2581a\"\n- \"\\xE9\"\n- \"\\U0001F600\"\n- \"\\u3000\"\n- y\n- ''\n", "list");
  EXPECT_THAT(list.as<std::vector<std::string>>(),
              testing::ElementsAre("▁a", "é", "😀", "　", "y", ""));
}

TEST(EspnetFolder, WhatChangesResultsIsRefusedByName) {
  const auto spoiled = [](const std::string& was, const std::string& is) {
    const Folder folder("conformer");
    folder.replace(was, is);
    return folder.problems();
  };
  EXPECT_THAT(spoiled("encoder: conformer", "encoder: whisper"), HasSubstr("whisper"));
  EXPECT_THAT(spoiled("frontend: default", "frontend: s3prl"), HasSubstr("s3prl"));
  EXPECT_THAT(spoiled("postencoder: null", "postencoder: hugging_face_transformers"),
              HasSubstr("postencoder"));
  EXPECT_THAT(spoiled("token_type: char", "token_type: whisper_en"), HasSubstr("whisper_en"));
  EXPECT_THAT(spoiled("    macaron_style: true", "    macaron_styl: true"),
              HasSubstr("macaron_styl"));
  EXPECT_THAT(spoiled("init: null", "promptencoder: transformer"),
              HasSubstr("e_branchformer_ctc go together"));
  EXPECT_THAT(spoiled("init: null", "tts: fastspeech2"), HasSubstr("task 'tts'"));
  EXPECT_THAT(spoiled("save_strategy: all", "save_strategy: adapter_only"), "");
  EXPECT_THAT(spoiled("use_adapter: false\n", "use_adapter: true\n"), "");
  // A key of a version to come.
  EXPECT_THAT(spoiled("seed: 0", "sead: 0"), HasSubstr("warning"));
}

// espnet_keys.txt: the options of ESPnet's training programs (asr, s2t, s2t_ctc, asr_transducer) in every commit that changed
// them from December 2020 to August 2026; each is written into config.yaml.
TEST(EspnetFolder, AllThatEspnetHasWrittenIsKnown) {
  const Folder folder("conformer");
  std::string text = read_file(folder.config());
  const std::string keys = read_file(fs::path(in_source("tests/speech/espnet_keys.txt")));
  for (const std::string& key : split(trim(keys), '\n'))
    if (("\n" + text).find("\n" + key + ":") == std::string::npos) text += key + ": null\n";
  write_file_atomic(folder.config(), text);
  EXPECT_EQ(folder.problems(), "");
}

TEST(EspnetFolder, SaysWhatItLookedFor) {
  const TempFolder empty;
  EXPECT_THAT([&] { open_model_folder(empty.path()); },
              testing::ThrowsMessage<DataError>(HasSubstr("no meta.yaml, config.yaml")));
  EXPECT_THROW(open_model_folder(empty.path() / "nothing"), IoError);
  const Folder folder("ctc");
  const fs::path weights = open_model_folder(folder.path()).weights;
  fs::remove(weights);
  EXPECT_EQ(open_model_folder(folder.path()).missing.size(), 1U);
}

}  // namespace
}  // namespace tutti::speech
