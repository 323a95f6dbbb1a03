// Published models from the command line: shown, decoded, converted.
#include <gmock/gmock.h>

#include "tests/systems/published_model.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;

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

TEST_F(Published, OwsmsCtcWithoutASearchWhereAsked) {
  const auto sounds = write_sounds("s2t");
  const std::string owsm = folder_of("owsm").string();
  const auto path = decode(owsm, words_of({{"ctc_greedy", true}}, sounds));
  EXPECT_EQ(path, decode(owsm, words_of({{"ctc_greedy", true}, {"maxlenratio", -1}}, sounds)));
  EXPECT_NE(path, decode(owsm, words_of({{"maxlenratio", -30}}, sounds)));
  const auto timed = run({"infer", "--model", owsm, "--device", "cpu", "ctc_greedy=true",
                          "predict_time=true", sounds[0]});
  EXPECT_EQ(timed.exit_code, 2) << timed.describe();
  EXPECT_THAT(timed.err, HasSubstr("but CTC knows no times"));
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

  // What infer and convert warn of, before they do.
  write_file_atomic(config, text + "my_magic_scale: 3.0\n");
  EXPECT_THAT(run({"model", "show", "broken"}).out,
              testing::ContainsRegex("warning     .*my_magic_scale: ignored"));
  const Json warned = parse_json(run({"model", "show", "broken", "--json"}).out, "show");
  ASSERT_EQ(warned["warnings"].size(), 1u) << warned;
  EXPECT_THAT(warned["warnings"][0].get<std::string>(), HasSubstr("my_magic_scale: ignored"));

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

TEST_F(Published, AMarkThatOwsmDoesNotKnowIsAnsweredWithThoseItKnows) {
  const auto sounds = write_sounds("s2t", 1);
  for (const std::string family : {"owsm", "owsm_ctc"}) {
    const auto refused = [&](const std::string& word, const std::string& known) {
      const auto result = run({"infer", "--model", folder_of(family).string(), word, sounds[0]});
      EXPECT_EQ(result.exit_code, 2) << result.describe();
      EXPECT_THAT(result.err, HasSubstr(known)) << family;
      return result.err;
    };
    const std::string languages = "a language of the model: <abk>, <deu>, <eng>, <zul>";
    EXPECT_THAT(refused("lang_sym=eng", languages),
                testing::AllOf(HasSubstr("lang_sym: got eng"), HasSubstr("did you mean <eng>?")));
    EXPECT_THAT(refused("lang_sym=<fra>", languages), HasSubstr("lang_sym: got <fra>"));
    EXPECT_THAT(
        refused("task_sym=<st_due>", "a task of the model: <asr>, <st_"),
        testing::AllOf(HasSubstr("task_sym: got <st_due>"), HasSubstr("did you mean <st_deu>?")));
  }
}

// The same words from `config check` and from both ways to run.
TEST_F(Published, OptionsWithoutEffectAreTold) {
  const auto sounds = write_sounds("asr", 1);
  struct Case {
    std::string family, target, key, value, words;
    bool refused = false;
  };
  const std::string greedy = "the best token of each frame gives one text";
  for (const Case& c : std::vector<Case>{
           {"conformer", "asr_inference.Speech2Text", "predict_time", "true",
            "got true, but the model is a plain recogniser without prompts", true},
           {"conformer", "asr_inference.Speech2Text", "text_prev", "hello",
            "got hello, but the model is a plain recogniser without prompts", true},
           {"ctc", "asr_inference.Speech2Text", "lm_weight", "0.3",
            "got 0.3, which has no effect: there is no language model"},
           {"transducer", "asr_inference.Speech2Text", "ctc_weight", "0.3",
            "got 0.3, which has no effect: the search of a transducer does not ask for it"},
           {"conformer", "asr_inference.Speech2Text", "transducer_conf", "{search_type: greedy}",
            "has no effect: the model is no transducer"},
           {"transducer", "asr_inference.Speech2Text", "ctc_greedy", "true",
            "got true, but a transducer's search does not ask CTC", true},
           {"owsm_ctc", "s2t_inference_ctc.Speech2TextGreedySearch", "nbest", "3",
            "got 3, which has no effect: " + greedy}}) {
    const bool is_s2t = c.family.starts_with("owsm");
    const std::string prefix = is_s2t ? "s2t" : "asr";
    const std::string files = folder_of(c.family).string() + "/exp/" + prefix + "_train_raw/";
    write_file_atomic(here() / "inference.yaml",
                      "model:\n  _target_: espnet2.bin." + c.target + "\n  " + prefix +
                          "_train_config: " + files + "config.yaml\n  " + prefix + "_model_file: " +
                          files + "valid.acc.ave_10best.pth\n  " + c.key + ": " + c.value +
                          "\ndataset:\n  test: [{name: t, data_src_args: {wav_scp: "
                          "wav.scp}}]\nrecipe_dir: .\ndata_dir: .\nexp_dir: exp\n"
                          "inference_dir: out\n");
    write_file_atomic(here() / "wav.scp", "a " + sounds[0] + "\n");
    const auto checked = run({"config", "check", "inference.yaml"});
    const auto decoded = run({"infer", "--model", folder_of(c.family).string(), "--device", "cpu",
                              c.key + "=" + c.value, sounds[0]});
    for (const auto& result : {checked, decoded}) {
      EXPECT_EQ(result.exit_code, c.refused ? 2 : 0) << result.describe();
      EXPECT_THAT(result.out + result.err, HasSubstr(c.key + ": " + c.words)) << result.command;
    }
  }
  const auto beam = run({"infer", "--model", folder_of("ctc").string(), "--device", "cpu",
                         "ctc_greedy=true", "beam_size=7", sounds[0]});
  EXPECT_TRUE(beam.ok()) << beam.describe();
  EXPECT_THAT(beam.err, HasSubstr("beam_size: got 7, which has no effect: " + greedy));
}

TEST_F(Published, AModelThatIsNotThereIsAnsweredWithNamesThatAre) {
  const auto sounds = write_sounds("asr", 1);
  fs::create_directories(here() / "exp/training/model_pack");
  const auto refused = [&](const std::string& model) {
    const auto result = run({"infer", "--model", model, sounds[0]});
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_THAT(result.err, HasSubstr("--model: got '" + model +
                                      "', but no such file, folder or "
                                      "pack is there"));
    return result.err;
  };
  EXPECT_THAT(refused("exp/trainng/model_pack"),
              HasSubstr("did you mean 'exp/training/model_pack'?"));
  EXPECT_THAT(refused("exp/training/modelpack"),
              HasSubstr("did you mean 'exp/training/model_pack'?"));
  EXPECT_THAT(refused("whisper-large"), HasSubstr("nothing is downloaded here"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"model", "show", "exp/trainng"},
        {"model", "convert", "exp/trainng", "out"}}) {
    const auto result = run(words);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_THAT(result.err, HasSubstr("did you mean 'exp/training'?"));
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

}  // namespace
}  // namespace tutti::systems
