// Published models from the command line: shown, decoded, converted, adapted. The folders and what
// ESPnet's own program says for them are made by tools/make_espnet_folders.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>

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

  std::vector<std::string> write_sounds(const std::string& task, std::size_t count = 4) const {
    std::vector<std::string> names;
    for (const auto& samples : test_sounds(task, count)) {
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

// What ESPnet says of every sound.
std::vector<std::string> texts(const Json& list) {
  std::vector<std::string> out;
  for (const Json& text : list) out.push_back(without_second_end(text));
  return out;
}

// The options of a case and the files, as words of a command.
std::vector<std::string> words_of(const Json& options, const std::vector<std::string>& files) {
  std::vector<std::string> words;
  for (const auto& [key, value] : options.items()) words.push_back(key + "=" + value.dump());
  words.insert(words.end(), files.begin(), files.end());
  return words;
}

constexpr std::size_t kMany = 32;

TEST_F(Published, FolderZipAndPackSayWhatEspnetSays) {
  const auto sounds = write_sounds("asr", kMany);
  for (const std::string family : {"conformer", "ctc", "transducer"}) {
    const auto converted = run({"model", "convert", folder_of(family).string(), family + "_pack"});
    ASSERT_TRUE(converted.ok()) << converted.describe();
    const Json expected = expected_of(family);
    for (const Json& c : expected["cases"]) {
      Json options = c["options"];
      options["maxlenratio"] = options.value("ctc_weight", 0.0) < 1 ? -10 : 0;
      const auto words = words_of(options, sounds);
      EXPECT_EQ(decode(folder_of(family).string(), words), texts(c["text"])) << family << options;
      EXPECT_EQ(decode(family + "_pack", words), texts(c["text"])) << family << " as a pack";
    }
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

// ESPnet's task of their own: an encoder of blocks, other names of weights, another search.
TEST_F(Published, TransducersOfTheirOwnTaskSayWhatEspnetSays) {
  const auto sounds = write_sounds("asr", kMany);
  for (const std::string family : {"rnnt_conformer", "rnnt_ebranchformer", "rnnt_branchformer"}) {
    const std::string folder = folder_of(family).string();
    const auto shown = run({"model", "show", folder});
    EXPECT_TRUE(shown.ok()) << shown.describe();
    EXPECT_THAT(shown.out, HasSubstr("task        asr_transducer"));
    EXPECT_THAT(shown.out, HasSubstr("ready       yes"));
    const auto converted = run({"model", "convert", folder, family + "_pack"});
    ASSERT_TRUE(converted.ok()) << converted.describe();
    const Json expected = expected_of(family);
    for (const Json& c : expected["cases"]) {
      const auto words = words_of(c["options"], sounds);
      EXPECT_EQ(decode(folder, words), texts(c["text"])) << family << c["options"];
      EXPECT_EQ(decode(family + "_pack", words), texts(c["text"])) << family << " as a pack";
    }
  }
}

TEST_F(Published, ATransducerByItsTarget) {
  const auto sounds = write_sounds("asr", kMany);
  std::string scp;
  for (const auto& name : sounds)
    scp += name.substr(0, name.find('.')) + " " + (here() / name).string() + "\n";
  write_file_atomic(here() / "wav.scp", scp);
  const std::string files = folder_of("rnnt_ebranchformer").string() + "/exp/asr_train_raw/";
  write_file_atomic(here() / "inference.yaml",
                    "model:\n  _target_: espnet2.bin.asr_transducer_inference.Speech2Text\n"
                    "  asr_train_config: " +
                        files + "config.yaml\n  asr_model_file: " + files +
                        "valid.acc.ave_10best.pth\n  device: cpu\n  beam_size: 3\n"
                        "  beam_search_config: {search_type: default, score_norm: true}\n"
                        "dataset:\n  test:\n    - {name: t, data_src_args: {wav_scp: wav.scp}}\n"
                        "recipe_dir: .\ndata_dir: .\nexp_dir: exp\ninference_dir: out\n"
                        "batch_size: 4\nparallel: {env: local, n_workers: 2}\n");
  const auto result = run({"infer", "--config", "inference.yaml"});
  ASSERT_TRUE(result.ok()) << result.describe();
  std::vector<std::string> said;
  for (const auto& line : split(trim(read_file(here() / "out/t/results.jsonl")), '\n'))
    said.push_back(parse_json(line, "out")["result"]["hyp"]);
  EXPECT_EQ(said, texts(expected_of("rnnt_ebranchformer")["cases"][2]["text"]));
}

TEST_F(Published, AModelThatWasMovedIsTheSame) {
  fs::copy(folder_of("conformer"), here() / "model", fs::copy_options::recursive);
  write_file_atomic(here() / "wav.scp",
                    "a " + (here() / write_sounds("asr", 1)[0]).string() + "\n");
  const auto infer = [&](const std::string& folder) {
    write_file_atomic(here() / "inference.yaml",
                      "model: {_target_: espnet2.bin.asr_inference.Speech2Text, device: cpu, "
                      "beam_size: 2, maxlenratio: -4, model_tag: " +
                          folder +
                          "}\ndataset: {test: [{name: t, data_src_args: {wav_scp: wav.scp}}]}\n"
                          "recipe_dir: .\ndata_dir: .\nexp_dir: exp\ninference_dir: out\n"
                          "parallel: {env: local, n_workers: 1}\n");
    const auto result = run({"infer", "--config", "inference.yaml"});
    EXPECT_TRUE(result.ok()) << result.describe();
    return result.err;
  };
  EXPECT_THAT(infer("model"), testing::Not(HasSubstr("up to date")));
  fs::rename(here() / "model", here() / "moved");
  EXPECT_THAT(infer("moved"), HasSubstr("up to date"));
}

TEST_F(Published, WhatTransducersHaveBeyondThatIsRefusedByName) {
  fs::copy(folder_of("rnnt_ebranchformer"), here() / "other", fs::copy_options::recursive);
  const fs::path config = here() / "other/exp/asr_train_raw/config.yaml";
  const std::string text = read_file(config);
  const auto expect = [&](const std::string& was, const std::string& is, const std::string& words) {
    ASSERT_NE(text.find(was), std::string::npos) << was;
    write_file_atomic(config, std::string(text).replace(text.find(was), was.size(), is));
    const auto refused = run({"infer", "--model", "other", "nothing.wav"});
    EXPECT_EQ(refused.exit_code, 2) << is << refused.describe();
    EXPECT_THAT(refused.err, HasSubstr(words)) << is;
  };
  expect("block_type: ebranchformer", "block_type: conv1d", "conv1d are not supported");
  expect("vgg_like: false", "vgg_like: true", "vgg_like: not supported");
  expect("conv_size: 16", "conv_size: 8", "conv_size: got 8");
  expect("short_chunk_size: 5", "norm_type: rms_norm", "norm_type: not supported");
  expect("short_chunk_size: 5", "pos_wise_act_type: mish", "got 'mish'");
  expect("decoder: stateless", "decoder: mega", "got 'mega', and only rnn and stateless");
  write_file_atomic(config, text);
  const auto search =
      run({"infer", "--model", "other", "beam_search_config={search_type: maes}", "nothing.wav"});
  EXPECT_EQ(search.exit_code, 2) << search.describe();
  EXPECT_THAT(search.err, HasSubstr("got 'maes'"));
}

TEST_F(Published, CtcWithoutASearchWhereAsked) {
  const auto sounds = write_sounds("asr");
  const auto path = decode(folder_of("ctc").string(), words_of({{"ctc_greedy", true}}, sounds));
  EXPECT_EQ(path, decode(folder_of("ctc").string(),
                         words_of({{"ctc_greedy", true}, {"beam_size", 7}}, sounds)));
  EXPECT_NE(path, texts(expected_of("ctc")["cases"][0]["text"]));
}

TEST_F(Published, LanguageModelsTakePartInTheSearch) {
  const auto sounds = write_sounds("asr", kMany);
  const Json expected = expected_of("lm");
  for (const Json& c : expected["cases"]) {
    auto words = words_of(c["options"], sounds);
    words.insert(
        words.begin(),
        {"maxlenratio=-10",
         "lm_file=" + (folder_of(c["lm"].get<std::string>()) / "valid.loss.ave.pth").string()});
    EXPECT_EQ(decode(folder_of(c["family"].get<std::string>()).string(), words), texts(c["text"]))
        << c["family"] << c["lm"];
  }

  const auto refused = [&](const std::string& family, std::vector<std::string> words, int code,
                           const std::string& text) {
    words.insert(words.begin(), {"infer", "--model", folder_of(family).string()});
    words.push_back(sounds[0]);
    const auto result = run(words);
    EXPECT_EQ(result.exit_code, code) << result.describe();
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  const std::string lm = "lm_file=" + (folder_of("lm_rnn") / "valid.loss.ave.pth").string();
  refused("transducer", {lm}, 2, "the search of a transducer");
  refused("conformer", {"ngram_file=3gram.arpa"}, 2, "n-gram models are not supported");
  refused("conformer", {"lm_file=nowhere.pth"}, 3, "nowhere.pth");
  refused("conformer", {"lm_train_config=" + (folder_of("lm_rnn") / "config.yaml").string()}, 2,
          "without lm_file");
  fs::copy(folder_of("lm_rnn"), here() / "lm", fs::copy_options::recursive);
  const std::string config = read_file(here() / "lm/config.yaml");
  std::string other = config;
  other.replace(other.find("- T\n"), 4, "- U\n");
  write_file_atomic(here() / "lm/config.yaml", other);
  refused("conformer", {"lm_file=lm/valid.loss.ave.pth"}, 3, "must be trained with");
  other = config;
  other.replace(other.find("lm: seq_rnn"), 11, "lm: transformer_opt");
  write_file_atomic(here() / "lm/config.yaml", other);
  refused("conformer", {"lm_file=lm/valid.loss.ave.pth"}, 2, "transformer_opt");
  // A published folder brings its own, which is used as ESPnet does.
  fs::copy(folder_of("ctc"), here() / "with_lm", fs::copy_options::recursive);
  fs::copy(folder_of("lm_plain"), here() / "with_lm/exp/lm_train");
  std::string meta = read_file(here() / "with_lm/meta.yaml");
  meta.insert(meta.find("files:\n") + 7, "  lm_file: exp/lm_train/valid.loss.ave.pth\n");
  meta.insert(meta.find("yaml_files:\n") + 12, "  lm_train_config: exp/lm_train/config.yaml\n");
  write_file_atomic(here() / "with_lm/meta.yaml", meta);
  const Json c = expected_of("lm")["cases"][3];
  auto words = words_of(c["options"], sounds);
  words.insert(words.begin(), "maxlenratio=-10");
  EXPECT_EQ(decode("with_lm", words), texts(c["text"]));
  EXPECT_THAT(run({"model", "show", "with_lm"}).out,
              HasSubstr("lm          exp/lm_train/valid.loss.ave.pth"));
}

TEST_F(Published, ShowSaysWhatAFolderHoldsAndLacks) {
  const auto shown = run({"model", "show", folder_of("owsm").string(), "--json"});
  ASSERT_TRUE(shown.ok()) << shown.describe();
  const Json info = parse_json(shown.out, "show");
  EXPECT_EQ(info["task"], "s2t");
  EXPECT_EQ(info["tokens"], 1529);
  EXPECT_EQ(info["languages"], (Json{"<abk>", "<deu>", "<eng>", "<zul>"}));
  EXPECT_TRUE(info["problems"].empty() && info["missing"].empty()) << info;

  // A pack below a recipe's exp: its own place and names, and a size that is not rounded to nothing.
  const auto made =
      run({"model", "convert", folder_of("conformer").string(), "exp/tag/model_pack"});
  ASSERT_TRUE(made.ok()) << made.describe();
  const auto pack = run({"model", "show", "exp/tag/model_pack/"});
  ASSERT_TRUE(pack.ok()) << pack.describe();
  EXPECT_THAT(pack.out, HasSubstr("/exp/tag/model_pack\ntask        asr\nconfig      config.yaml"));
  EXPECT_THAT(pack.out, testing::ContainsRegex("parameters  [1-9][0-9.]* thousand, [1-9]"));

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

// A piece of a sentencepiece model, as its file has it: text, score 0, type.
std::string piece(const std::string& text, char type) {
  std::string out = "\x0a";
  out += static_cast<char>(text.size());
  out += text + std::string("\x15\0\0\0\0\x18", 6) + type;
  return std::string("\x0a") + static_cast<char>(out.size()) + out;
}

TEST_F(Published, ASentencepieceModelOfAnotherListIsRefused) {
  const auto sounds = write_sounds("asr");
  fs::copy(folder_of("conformer"), here() / "bpe", fs::copy_options::recursive);
  const fs::path config = here() / "bpe/exp/asr_train_raw/config.yaml";
  std::string text = read_file(config);
  text.replace(text.find("token_type: char"), 16, "token_type: bpe");
  text.replace(text.find("bpemodel: null"), 14, "bpemodel: bpe.model");
  write_file_atomic(config, text);
  write_file_atomic(here() / "bpe/bpe.model", piece("<unk>", 2) + piece("<s>", 3) +
                                                  piece("</s>", 3) + piece("E", 1) + piece("T", 1));
  const auto refused = run({"infer", "--model", "bpe", sounds[0]});
  EXPECT_EQ(refused.exit_code, 3) << refused.describe();
  EXPECT_THAT(refused.err, HasSubstr("does not fit the token list"));
}

TEST_F(Published, OwsmByItsTargetOnTwoWorkers) {
  const auto sounds = write_sounds("s2t", kMany);
  std::string scp;
  for (const auto& name : sounds)
    scp += name.substr(0, name.find('.')) + " " + (here() / name).string() + "\n";
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
    if (i < expected["languages"].size()) {
      EXPECT_EQ(language[i]["hyp"], expected["languages"][i][0][0]);
    }
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

TEST_F(Published, OwsmSaysWhatEspnetSays) {
  const auto sounds = write_sounds("s2t", kMany);
  const std::string folder = folder_of("owsm").string();
  const auto converted = run({"model", "convert", folder, "pack"});
  ASSERT_TRUE(converted.ok()) << converted.describe();
  const Json expected = expected_of("owsm");
  for (const Json& c : expected["cases"]) {
    const auto words = words_of(c["options"], sounds);
    EXPECT_EQ(decode(folder, words), texts(c["text"])) << c["options"];
    EXPECT_EQ(decode("pack", words), texts(c["text"])) << c["options"] << " as a pack";
  }
}

TEST_F(Published, OwsmCtcSaysWhatEspnetSays) {
  const auto sounds = write_sounds("s2t", kMany);
  const Json expected = expected_of("owsm_ctc");
  const std::string folder = folder_of("owsm_ctc").string();
  const auto converted = run({"model", "convert", folder, "pack"});
  ASSERT_TRUE(converted.ok()) << converted.describe();
  for (const Json& c : expected["cases"]) {
    const auto words = words_of(c["options"], sounds);
    EXPECT_EQ(decode(folder, words), texts(c["text"])) << c["options"];
    EXPECT_EQ(decode("pack", words), texts(c["text"])) << c["options"] << " as a pack";
  }
  const auto before =
      decode(folder, {"text_prev=one two", sounds[0], sounds[1], sounds[2], sounds[3]});
  EXPECT_EQ(before, texts(expected["text_prev"]));
  // Two long recordings share the batches of their windows.
  data::write_wav(here() / "long.wav",
                  {.samples = test_sound(5, 16000 * 75), .sample_rate = 16000});
  data::write_wav(here() / "other.wav",
                  {.samples = test_sound(6, 16000 * 50), .sample_rate = 16000});
  EXPECT_EQ(decode(folder, {"batch_size=3", "other.wav", "long.wav"})[1],
            expected["long"].get<std::string>());
  const auto subtitles = run({"infer", "--model", folder, "--device", "cpu", "--srt", "long.wav"});
  ASSERT_TRUE(subtitles.ok()) << subtitles.describe();
  EXPECT_THAT(subtitles.out, HasSubstr(" --> "));
  EXPECT_THAT(subtitles.out, testing::Not(HasSubstr("<"))) << "marks are not said";
  const auto shown = run({"model", "show", folder});
  EXPECT_THAT(shown.out, HasSubstr("task        s2t_ctc"));
  for (const std::string word : {"lang_sym=<xyz>", "predict_time=true", "context_len_in_secs=15"}) {
    const auto refused = run({"infer", "--model", folder, word, sounds[0]});
    EXPECT_EQ(refused.exit_code, 2) << refused.describe();
    EXPECT_THAT(refused.err, HasSubstr(word.substr(0, word.find('='))));
  }
}

// Of several windows. OWSM says its times itself; those of CTC are frames.
TEST_F(Published, SubtitlesOfALongTalkGoOnInTime) {
  constexpr int kSeconds = 100;
  data::write_wav(here() / "talk.wav",
                  {.samples = test_sound(5, 16000 * kSeconds), .sample_rate = 16000});
  for (const std::string family : {"owsm", "owsm_ctc"}) {
    std::vector<std::string> words = {
        "infer", "--model", folder_of(family).string(), "--device", "cpu", "--srt", "talk.wav"};
    if (family == "owsm")
      words.insert(words.end() - 1, {"predict_time=true", "beam_size=1", "maxlenratio=-12"});
    const auto subtitles = run(words);
    ASSERT_TRUE(subtitles.ok()) << subtitles.describe();
    double last = 0;
    int count = 0;
    for (const auto& line : split(subtitles.out, '\n')) {
      std::array<int, 8> n{};
      if (std::sscanf(line.c_str(), "%d:%d:%d,%d --> %d:%d:%d,%d", &n[0], &n[1], &n[2], &n[3],
                      &n[4], &n[5], &n[6], &n[7]) != 8)
        continue;
      const double begin = n[0] * 3600 + n[1] * 60 + n[2] + n[3] / 1000.0;
      const double end = n[4] * 3600 + n[5] * 60 + n[6] + n[7] / 1000.0;
      EXPECT_GE(begin, last) << family << " " << line;
      EXPECT_GT(end, begin) << family << " " << line;
      last = end;
      ++count;
    }
    EXPECT_GT(count, 4) << family;
    EXPECT_LE(last, kSeconds) << family;
  }
}

// ---- adapting

class Adapted : public Published {
 protected:
  void SetUp() override { prepare("conformer"); }

  // A pack of the family, and a manifest of what ESPnet was taught with.
  void prepare(const std::string& family) {
    const Json lesson = expected_of(family)["lesson"]["texts"];
    const auto sounds = write_sounds(family == "owsm" ? "s2t" : "asr");
    std::string lines;
    for (std::size_t i = 0; i < lesson.size(); ++i) {
      Json line = {{"id", sounds[i]}, {"audio", sounds[i]}, {"text", lesson[i][0]}};
      if (lesson[i].size() > 1)
        line.update({{"text_prev", lesson[i][1]}, {"text_ctc", lesson[i][2]}});
      lines += line.dump() + "\n";
    }
    write_file_atomic(here() / "all.jsonl", lines);
    const auto made = run({"model", "convert", folder_of(family).string(), "pack", "--force"});
    ASSERT_TRUE(made.ok()) << made.describe();
  }

  // One step from what `keys` says.
  CommandResult train(const std::string& keys, const std::string& task = "asr.ASRTask",
                      const std::string& preprocessor = "token_type: char",
                      const std::vector<std::string>& overrides = {}) const {
    // The model block of the pack, by lines: up to the next key at top level.
    std::string model;
    bool inside = false;
    for (const auto& line : split(read_file(here() / "pack/config.yaml"), '\n')) {
      if (!line.empty() && line[0] != ' ') inside = line == "model:";
      if (inside) model += line + "\n";
    }
    for (const char* file : {"tokens.txt", "feats_stats.npz"})
      if (const auto at = model.find(file); at != std::string::npos)
        model.insert(at, (here() / "pack/").string());
    const std::string batches =
        "{iter_factory: {num_workers: 0, batches: {type: unsorted, batch_size: 4, shape_files: "
        "[]}}}";
    write_file_atomic(here() / "training.yaml",
                      "task: espnet2.tasks." + task +
                          "\nseed: 1\nrecipe_dir: .\ndata_dir: .\nexp_dir: exp\n" +
                          "stats_dir: stats\n" + model + "\ndataset:\n" +
                          "  train: [{name: t, data_src_args: {manifest: all.jsonl}}]\n" +
                          "  valid: [{name: v, data_src_args: {manifest: all.jsonl}}]\n" +
                          "  preprocessor: {" + preprocessor + ", token_list: pack/tokens.txt}\n" +
                          "optimizer: {_target_: sgd, lr: 0.1}\n" +
                          "best_model_criterion: [[valid/loss, 1, min]]\n" +
                          "dataloader: {train: " + batches + ", valid: " + batches + "}\n" +
                          "trainer: {accelerator: cpu, devices: 1, max_epochs: 1}\n" + keys);
    fs::remove_all(here() / "exp");
    std::vector<std::string> words = {"train", "--config", "training.yaml"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return run(words);
  }

  // The newest value of a metric.
  double metric(const std::string& name) const {
    double value = std::nan("");
    for (const auto& line : split(trim(read_file(here() / "exp/metrics.jsonl")), '\n'))
      value = parse_json(line, "metrics").value(name, value);
    return value;
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

TEST_F(Adapted, EveryPackKnowsHowToGoOn) {
  fs::copy(here() / "all.jsonl", here() / "train.jsonl");
  fs::copy(here() / "all.jsonl", here() / "valid.jsonl");
  const std::string config = "pack/adapt.yaml";
  const auto checked = run({"config", "check", config});
  EXPECT_TRUE(checked.ok()) << checked.describe();
  const auto trained = run({"train", "--config", config, "trainer.accelerator=cpu",
                            "trainer.max_epochs=1", "dataloader.train.iter_factory.num_workers=0",
                            "dataloader.valid.iter_factory.num_workers=0"});
  ASSERT_TRUE(trained.ok()) << trained.describe();
  EXPECT_THAT(trained.err, testing::ContainsRegex("encoder +[0-9,]+ +all +- +-"));
  const auto packed = run({"pack_model", "--config", config});
  ASSERT_TRUE(packed.ok()) << packed.describe();
  EXPECT_EQ(
      decode("exp/adapted/model_pack", {"beam_size=2", "maxlenratio=-5", "sound0.wav"}).size(), 1U);
  EXPECT_TRUE(fs::exists(here() / "exp/adapted/model_pack/adapt.yaml"));
  // The way out that is named for other settings is one.
  std::vector<std::string> other = {"train",
                                    "--config",
                                    config,
                                    "trainer.accelerator=cpu",
                                    "trainer.max_epochs=1",
                                    "optimizer.lr=0.001",
                                    "dataloader.train.iter_factory.num_workers=0",
                                    "dataloader.valid.iter_factory.num_workers=0"};
  const auto refused = run(other);
  EXPECT_EQ(refused.exit_code, 2) << refused.describe();
  EXPECT_THAT(refused.err, HasSubstr("exp_tag=NAME"));
  other.push_back("exp_tag=second");
  EXPECT_TRUE(run(other).ok());
  EXPECT_TRUE(fs::exists(here() / "exp/second/config.yaml"));
}

// Their own task's search is not that of task asr, of which every pack is one.
TEST_F(Adapted, ATransducerOfItsOwnTaskIsSearchedAsBefore) {
  prepare("rnnt_ebranchformer");
  const auto sounds = write_sounds("asr", kMany);
  fs::copy(here() / "all.jsonl", here() / "train.jsonl");
  fs::copy(here() / "all.jsonl", here() / "valid.jsonl");
  const auto trained =
      run({"train", "--config", "pack/adapt.yaml", "trainer.accelerator=cpu", "optimizer.lr=1e-12",
           "trainer.max_epochs=1", "dataloader.train.iter_factory.num_workers=0",
           "dataloader.valid.iter_factory.num_workers=0"});
  ASSERT_TRUE(trained.ok()) << trained.describe();
  const auto packed = run({"pack_model", "--config", "pack/adapt.yaml"});
  ASSERT_TRUE(packed.ok()) << packed.describe();
  const auto said = decode(folder_of("rnnt_ebranchformer").string(), sounds);
  EXPECT_EQ(decode("exp/adapted/model_pack", sounds), said);
  std::vector<std::string> other = {"transducer_conf={search_type: greedy}"};
  other.insert(other.end(), sounds.begin(), sounds.end());
  EXPECT_NE(decode("exp/adapted/model_pack", other), said);
}

TEST_F(Adapted, MistakesAreNamedBeforeTraining) {
  const auto expect = [&](const std::string& keys, int code, const std::string& words) {
    const auto result = train(keys);
    EXPECT_EQ(result.exit_code, code) << keys << result.describe();
    EXPECT_THAT(result.err, HasSubstr(words)) << keys;
  };
  expect("init_param: [nowhere.pth]\n", 2,
         "init_param.0: got 'nowhere.pth', but there is no such file or folder");
  expect("init_param: [pack:decoder2:decoder]\n", 3, "loads nothing");
  expect("init_param: [pack:a:b:c:d]\n", 2, "expected SOURCE");
  expect("freeze_param: [encodr]\n", 2, "did you mean 'encoder'?");
  expect("freeze_param: [encoder, decoder, ctc]\n", 2, "nothing is left to train");
  const std::string other = folder_of("ctc").string();
  expect("init_param: [" + other + "]\n", 3, "do not fit");
  const auto ignored = train("init_param: [" + other + ":ctc:ctc]\nignore_init_mismatch: true\n");
  EXPECT_TRUE(ignored.ok()) << ignored.describe();
}

// One step of plain gradient descent without dropout: the losses before and after it are ESPnet's.
TEST_F(Adapted, AStepOfFineTuningLeadsWhereEspnetGoes) {
  for (const std::string family : {"conformer", "ctc", "owsm", "transducer", "rnnt_conformer",
                                   "rnnt_ebranchformer", "rnnt_branchformer"}) {
    prepare(family);
    const Json lesson = expected_of(family)["lesson"];
    std::vector<std::string> words = {"optimizer.lr=0.002", "scheduler=null",
                                      "trainer.gradient_clip_val=null"};
    std::vector<std::string> rates = {"encoder_conf.dropout_rate",
                                      "encoder_conf.positional_dropout_rate"};
    if (family == "rnnt_ebranchformer")
      rates.push_back("decoder_conf.embed_dropout_rate");
    else if (family == "transducer" || family.starts_with("rnnt"))
      rates.insert(rates.end(), {"decoder_conf.dropout", "decoder_conf.dropout_embed"});
    else if (family != "ctc")
      rates.insert(rates.end(),
                   {"decoder_conf.dropout_rate", "decoder_conf.positional_dropout_rate"});
    for (const std::string& rate : rates) words.push_back("model." + rate + "=0");
    const bool is_s2t = family == "owsm";
    const auto trained =
        train("init_param: pack\n", is_s2t ? "s2t.S2TTask" : "asr.ASRTask",
              is_s2t ? "token_type: word, speech_init_silence: 0, time_apply_prob: 1, "
                       "text_prev_apply_prob: 1"
                     : "token_type: char",
              words);
    ASSERT_TRUE(trained.ok()) << trained.describe();
    for (const auto& [name, theirs] :
         {std::pair<std::string, double>{"train/loss_epoch", lesson["step"]},
          {"valid/loss", lesson["after"]}})
      EXPECT_NEAR(metric(name), theirs, 1e-4 * std::abs(theirs)) << family << " " << name;
    for (const auto& [name, theirs] : lesson["stats"].items())
      EXPECT_NEAR(metric("valid/" + name), theirs.get<double>(), 1e-4 * theirs.get<double>())
          << family << " " << name;
  }
}

TEST_F(Adapted, SpeechToTextDataIsCheckedByName) {
  prepare("owsm");
  const std::string good = read_file(here() / "all.jsonl");
  const auto expect = [&](const std::string& was, const std::string& is, const std::string& words) {
    std::string text = good;
    text.replace(text.find(was), was.size(), is);
    write_file_atomic(here() / "all.jsonl", text);
    const auto result = train("init_param: pack\n", "s2t.S2TTask", "token_type: word");
    EXPECT_EQ(result.exit_code, 3) << result.describe();
    EXPECT_THAT(result.err, HasSubstr(words));
  };
  expect("<eng> <asr> <0.00> one", "one", "the text begins with 'one two");
  expect("<eng> <asr> <0.00> one", "<eng> <asr> one", "a language, a task, and a time");
  expect("\"text_ctc\":\"one two\"", "\"text_ctc\":\"\"", "no text_ctc");
  // The other way round: those keys have no meaning for a plain recogniser.
  prepare("conformer");
  const auto wrong = train("", "asr.ASRTask", "token_type: char, time_apply_prob: 1");
  EXPECT_EQ(wrong.exit_code, 2) << wrong.describe();
  EXPECT_THAT(wrong.err, HasSubstr("only a model of task s2t"));
}

TEST_F(Adapted, ATaskThatCannotBeTrainedIsRefusedByName) {
  for (const char* task : {"s2t_ctc.S2TTask", "st.STTask", "asr_transducer.ASRTransducerTask"}) {
    const auto result = train("", task);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_THAT(result.err, HasSubstr(task));
  }
}

}  // namespace
}  // namespace tutti::systems
