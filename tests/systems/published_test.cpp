// Published models from the command line: shown, decoded, converted, adapted. The folders and what
// ESPnet's own program says for them are made by tools/make_espnet_folders.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/systems/espnet/sound.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Published : public testing::Test {
 protected:
  static fs::path folder_of(const std::string& family) {
    return fs::path(TUTTI_SOURCE_DIR) / "tests/systems/espnet" / family;
  }
  static Json expected_of(const std::string& family) {
    const std::string file = folder_of(family).string() + ".json";
    return parse_json(read_file(file), file);
  }

  CommandResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
    return run_command({.argv = words,
                        .env = {{"TUTTI_CACHE", (here() / "cache").string()}},
                        .cwd = here(),
                        .timeout = std::chrono::minutes(5)});
  }

  const fs::path& here() const { return folder_.path(); }

  std::vector<std::string> write_sounds(const std::string& task) const {
    std::vector<std::string> names;
    for (const auto& samples : test_sounds(task)) {
      names.push_back("sound" + std::to_string(names.size()) + ".wav");
      data::write_wav(here() / names.back(), {.samples = samples, .sample_rate = 16000});
    }
    return names;
  }

  // The texts of `tutti infer --model`, one per file.
  std::vector<std::string> decode(const std::string& model, std::vector<std::string> words) const {
    words.insert(words.begin(), {"infer", "--model", model, "--device", "cpu", "--json"});
    const CommandResult result = run(words);
    EXPECT_TRUE(result.ok()) << result.describe();
    std::vector<std::string> texts;
    for (const auto& line : split(trim(result.out), '\n'))
      texts.push_back(parse_json(line, "infer").value("text", "?"));
    return texts;
  }

  TempFolder folder_;
};

std::vector<std::string> texts(const Json& list) { return list.get<std::vector<std::string>>(); }

TEST_F(Published, FolderZipAndPackSayWhatEspnetSays) {
  const auto sounds = write_sounds("asr");
  for (const std::string family : {"conformer", "ctc", "transducer"}) {
    const Json c = expected_of(family)["cases"].back();
    std::vector<std::string> words = {
        "beam_size=" + c["options"]["beam_size"].dump(),
        "ctc_weight=" + c["options"].value("ctc_weight", Json(0.0)).dump(), "maxlenratio=0"};
    words.insert(words.end(), sounds.begin(), sounds.end());
    const auto said = decode(folder_of(family).string(), words);
    // ESPnet searches a CTC model label by label, we frame by frame.
    if (family != "ctc") {
      EXPECT_EQ(said, texts(c["text"])) << family;
    }
    const auto converted = run({"model", "convert", folder_of(family).string(), family + "_pack"});
    ASSERT_TRUE(converted.ok()) << converted.describe();
    EXPECT_EQ(decode(family + "_pack", words), said) << family << " as a pack";
  }
  const auto zipped = run_command({.argv = {TUTTI_PYTHON, "-m", "zipfile", "-c",
                                            (here() / "ctc.zip").string(), "meta.yaml", "exp"},
                                   .cwd = folder_of("ctc")});
  if (!zipped.ok()) GTEST_SKIP() << TUTTI_PYTHON " cannot make a zip here";
  std::vector<std::string> words = {"beam_size=3", "ctc_weight=1.0", sounds[0]};
  const auto said = decode(folder_of("ctc").string(), words);
  EXPECT_EQ(decode("ctc.zip", words), said);
  // Unpacked once: what is there is taken the second time.
  EXPECT_EQ(decode("ctc.zip", words), said);
}

TEST_F(Published, ShowSaysWhatAFolderHoldsAndLacks) {
  const auto shown = run({"model", "show", folder_of("owsm").string(), "--json"});
  ASSERT_TRUE(shown.ok()) << shown.describe();
  const Json info = parse_json(shown.out, "show");
  EXPECT_EQ(info["task"], "s2t");
  EXPECT_EQ(info["tokens"], 1529);
  EXPECT_EQ(info["languages"], (Json{"<abk>", "<deu>", "<eng>", "<zul>"}));
  EXPECT_TRUE(info["problems"].empty() && info["missing"].empty()) << info;

  fs::copy(folder_of("conformer"), here() / "broken", fs::copy_options::recursive);
  const fs::path config = here() / "broken/exp/asr_train_raw/config.yaml";
  const std::string text = read_file(config);
  fs::remove(here() / "broken/exp/asr_train_raw/valid.acc.ave_10best.pth");
  const auto missing = run({"model", "show", "broken"});
  EXPECT_EQ(missing.exit_code, 3) << missing.describe();
  EXPECT_THAT(missing.out, HasSubstr("missing     exp/asr_train_raw/valid.acc.ave_10best.pth"));
  const auto refused = run({"infer", "--model", "broken", "nothing.wav"});
  EXPECT_EQ(refused.exit_code, 3) << refused.describe();
  EXPECT_THAT(refused.err, HasSubstr("valid.acc.ave_10best.pth, which is not there"));

  const std::size_t at = text.find("encoder: conformer");
  write_file_atomic(config, std::string(text).replace(at, 18, "encoder: whisper"));
  const auto whisper = run({"model", "show", "broken"});
  EXPECT_EQ(whisper.exit_code, 2) << whisper.describe();
  EXPECT_THAT(whisper.out, HasSubstr("'whisper', expected transformer"));
}

TEST_F(Published, OwsmByItsTargetOnTwoWorkers) {
  const auto sounds = write_sounds("s2t");
  std::string scp;
  for (const auto& name : sounds) scp += name.substr(0, 6) + " " + (here() / name).string() + "\n";
  write_file_atomic(here() / "wav.scp", scp);
  const Json expected = expected_of("owsm");
  const std::string files = folder_of("owsm").string() + "/exp/s2t_train_raw/";
  const auto inference = [&](const std::string& target, const std::string& keys,
                             const std::string& out) {
    write_file_atomic(
        here() / "inference.yaml",
        "model:\n  _target_: espnet2.bin." + target + "\n  s2t_train_config: " + files +
            "config.yaml\n  s2t_model_file: " + files +
            "valid.acc.ave_10best.pth\n  device: cpu\n" + keys +
            "dataset:\n  test:\n    - {name: t, data_src_args: {wav_scp: wav.scp}}\n" +
            "recipe_dir: .\ndata_dir: .\nexp_dir: exp\ninference_dir: " + out +
            "\nbatch_size: 2\nparallel: {env: local, n_workers: 2}\n");
    const auto result = run({"infer", "--config", "inference.yaml"});
    EXPECT_TRUE(result.ok()) << result.describe();
    std::vector<Json> results;
    for (const auto& line : split(trim(read_file(here() / out / "t/results.jsonl")), '\n'))
      results.push_back(parse_json(line, out)["result"]);
    return results;
  };
  const auto translated = inference("s2t_inference.Speech2Text",
                                    "  lang_sym: <deu>\n  task_sym: <st_deu>\n  beam_size: 4\n"
                                    "  ctc_weight: 0.3\n  maxlenratio: -8\n",
                                    "st");
  const auto timed = inference("s2t_inference.Speech2Text",
                               "  predict_time: true\n  beam_size: 3\n  maxlenratio: -10\n"
                               "  lm_weight: 0.0\n  partial_ar: false\n",
                               "times");
  const auto language =
      inference("s2t_inference_language.Speech2Language",
                "  first_lang_sym: <abk>\n  last_lang_sym: <zul>\n  nbest: 2\n", "language");
  for (std::size_t i = 0; i < sounds.size(); ++i) {
    EXPECT_EQ(translated[i]["hyp"], expected["cases"][1]["text"][i]);
    EXPECT_EQ(translated[i]["full_text"], expected["cases"][1]["full"][i]);
    EXPECT_EQ(timed[i]["full_text"], expected["cases"][2]["full"][i]);
    EXPECT_EQ(language[i]["hyp"], expected["languages"][i][0][0]);
  }
  data::write_wav(here() / "long.wav",
                  {.samples = test_sound(5, 16000 * 75), .sample_rate = 16000});
  const auto subtitles =
      run({"infer", "--model", folder_of("owsm").string(), "--device", "cpu", "--json",
           "predict_time=true", "beam_size=2", "maxlenratio=-12", "long.wav"});
  ASSERT_TRUE(subtitles.ok()) << subtitles.describe();
  const Json segments = parse_json(subtitles.out, "long")["segments"];
  ASSERT_EQ(segments.size(), expected["long"].size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    EXPECT_DOUBLE_EQ(segments[i]["begin"], expected["long"][i][0]);
    EXPECT_EQ(segments[i]["text"], expected["long"][i][2]);
  }
}

// ---- adapting

class Adapted : public Published {
 protected:
  void SetUp() override {
    const auto sounds = write_sounds("asr");
    std::string lines;
    for (const auto& name : sounds)
      lines += Json{{"id", name}, {"audio", name}, {"text", "TEn"}}.dump() + "\n";
    write_file_atomic(here() / "all.jsonl", lines);
    const auto made = run({"model", "convert", folder_of("conformer").string(), "pack"});
    ASSERT_TRUE(made.ok()) << made.describe();
  }

  // One step from what `keys` says.
  CommandResult train(const std::string& keys, const std::string& task = "asr.ASRTask") const {
    // The model block of the pack, by lines: up to the next key at top level.
    std::string model;
    bool inside = false;
    for (const auto& line : split(read_file(here() / "pack/config.yaml"), '\n')) {
      if (!line.empty() && line[0] != ' ') inside = line == "model:";
      if (inside) model += line + "\n";
    }
    for (const char* file : {"tokens.txt", "feats_stats.npz"}) {
      const auto at = model.find(file);
      model.insert(at, (here() / "pack/").string());
    }
    const std::string batches =
        "{iter_factory: {num_workers: 0, batches: {type: unsorted, batch_size: 2, shape_files: "
        "[]}}}";
    write_file_atomic(here() / "training.yaml",
                      "task: espnet2.tasks." + task +
                          "\nseed: 1\nrecipe_dir: .\ndata_dir: .\nexp_dir: exp\n" +
                          "stats_dir: stats\n" + model + "\ndataset:\n" +
                          "  train: [{name: t, data_src_args: {manifest: all.jsonl}}]\n" +
                          "  valid: [{name: v, data_src_args: {manifest: all.jsonl}}]\n" +
                          "  preprocessor: {token_type: char, token_list: pack/tokens.txt}\n" +
                          "optimizer: {_target_: sgd, lr: 0.1}\n" +
                          "best_model_criterion: [[valid/loss, 1, min]]\n" +
                          "dataloader: {train: " + batches + ", valid: " + batches + "}\n" +
                          "trainer: {accelerator: cpu, devices: 1, max_epochs: 1}\n" + keys);
    fs::remove_all(here() / "exp");
    return run({"train", "--config", "training.yaml"});
  }
};

TEST_F(Adapted, BeginsWithThePublishedWeightsAndSaysWhatCameOfIt) {
  const auto trained = train("init_param: " + folder_of("conformer").string() +
                             "\nfreeze_param: [encoder.embed, decoder]\n");
  ASSERT_TRUE(trained.ok()) << trained.describe();
  EXPECT_THAT(trained.err, HasSubstr("weights to begin with"));
  EXPECT_THAT(trained.err, testing::ContainsRegex("decoder +[0-9,]+ +all +- +all"));
  EXPECT_THAT(trained.err, testing::ContainsRegex("ctc +[0-9,]+ +all +- +-"));
  // Our own checkpoint is a source too.
  const auto again = train("init_param: [pack:encoder:encoder:encoder.embed]\n");
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, testing::ContainsRegex("decoder +[0-9,]+ +- +all +-"));
}

TEST_F(Adapted, MistakesAreNamedBeforeTraining) {
  const auto expect = [&](const std::string& keys, int code, const std::string& words) {
    const auto result = train(keys);
    EXPECT_EQ(result.exit_code, code) << keys << result.describe();
    EXPECT_THAT(result.err, HasSubstr(words)) << keys;
  };
  expect("init_param: [nowhere.pth]\n", 2, "nowhere.pth: no such file or folder");
  expect("init_param: [pack:decoder2:decoder]\n", 3, "loads nothing");
  expect("init_param: [pack:a:b:c:d]\n", 2, "expected SOURCE");
  expect("freeze_param: [encodr]\n", 2, "did you mean 'encoder'?");
  expect("freeze_param: [encoder, decoder, ctc]\n", 2, "nothing is left to train");
  const std::string other = folder_of("ctc").string();
  expect("init_param: [" + other + "]\n", 3, "do not fit");
  const auto ignored = train("init_param: [" + other + ":ctc:ctc]\nignore_init_mismatch: true\n");
  EXPECT_TRUE(ignored.ok()) << ignored.describe();
}

TEST_F(Adapted, ATaskThatCannotBeTrainedIsRefusedByName) {
  const auto result = train("", "s2t.S2TTask");
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("S2TTask"));
}

}  // namespace
}  // namespace tutti::systems
