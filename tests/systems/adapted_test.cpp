// Published models that are trained on, from the command line.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/systems/published_model.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;

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
  EXPECT_THAT(trained.err, testing::Not(HasSubstr("random values")));
  // Our own checkpoint is a source too.
  const auto again = train("init_param: [pack:encoder:encoder:encoder.embed]\n");
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, testing::ContainsRegex("decoder +[0-9,]+ +- +all +-"));
}

TEST_F(Adapted, WhatIsFrozenWithoutWeightsIsNamed) {
  const auto trained =
      train("init_param: [pack:encoder:encoder:encoder.embed]\nfreeze_param: [encoder, decoder]\n");
  ASSERT_TRUE(trained.ok()) << trained.describe();
  EXPECT_THAT(trained.err,
              testing::ContainsRegex("decoder +[0-9,]+ +- +all +all  \\([0-9,]+ of them new"));
  EXPECT_THAT(trained.err, HasSubstr("not loaded by init_param and stay at random values"));
  EXPECT_THAT(trained.err, testing::ContainsRegex("decoder: [0-9]+ of its [0-9]+ tensors"));
  EXPECT_THAT(trained.err, testing::ContainsRegex("encoder: [0-9]+ of its [0-9]+ tensors"));
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

// Losses after a step hang on gradients of thousands of frames, whose rounding is another one with every BLAS kernel (3.5e-4 was seen).
constexpr double kSums = 1e-3;

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
      EXPECT_NEAR(metric(name), theirs, kSums * std::abs(theirs)) << family << " " << name;
    for (const auto& [name, theirs] : lesson["stats"].items())
      EXPECT_NEAR(metric("valid/" + name), theirs.get<double>(), kSums * theirs.get<double>())
          << family << " " << name;
  }
}

TEST_F(Adapted, TextThatTheModelCannotSpellIsShownBeforeTraining) {
  const std::string good = read_file(here() / "all.jsonl");
  const auto with_text = [&](const std::string& text) {
    std::string lines = good;
    lines.replace(lines.find("\"TEn\""), 5, "\"" + text + "\"");
    write_file_atomic(here() / "all.jsonl", lines);
    return train("init_param: pack\n");
  };
  const auto fine = with_text("TE n");
  EXPECT_TRUE(fine.ok()) << fine.describe();
  EXPECT_THAT(fine.err, testing::Not(HasSubstr("cannot spell")));
  const auto some = with_text("TETETETETETEqx");
  EXPECT_TRUE(some.ok()) << some.describe();
  EXPECT_THAT(some.err, HasSubstr("1 of 1 utterances have what the model cannot spell, e.g. 'q', "
                                  "'x'; 14 % of all letters become <unk>; "));
  for (const auto& [text, fix] :
       {std::pair<std::string, std::string>{"qxw", "dataset.preprocessor"},
        {"tet", "dataset.preprocessor.text_cleaner=upper"}}) {
    const auto most = with_text(text);
    EXPECT_EQ(most.exit_code, 3) << most.describe();
    EXPECT_THAT(most.err, testing::AllOf(
                              HasSubstr("100 % of all letters become <unk>, expected at most half"),
                              HasSubstr(fix)));
    EXPECT_FALSE(fs::exists(here() / "exp/checkpoints"));
  }
  // The way out that it names is one.
  const auto mended = train("init_param: pack\n", "asr.ASRTask", "token_type: char",
                            {"dataset.preprocessor.text_cleaner=upper"});
  EXPECT_TRUE(mended.ok()) << mended.describe();
}

TEST_F(Adapted, AnEarlierRunStaysWhereItIsWhenTheDataIsBad) {
  ASSERT_TRUE(train("init_param: pack\n").ok());
  const std::string good = read_file(here() / "all.jsonl");
  const std::string kept = read_file(here() / "exp/metrics.jsonl");
  std::string bad = good;
  bad.replace(bad.find("\"audio\":\"sound0"), 15, "\"audio\":\"absent");
  write_file_atomic(here() / "all.jsonl", bad);
  const auto failed = run({"train", "--config", "training.yaml", "--force"});
  EXPECT_EQ(failed.exit_code, 3) << failed.describe();
  EXPECT_THAT(failed.err, HasSubstr("absent.wav"));
  EXPECT_TRUE(fs::exists(here() / "exp/checkpoints/last"));
  EXPECT_EQ(read_file(here() / "exp/metrics.jsonl"), kept);
  EXPECT_FALSE(fs::exists(here() / "exp/checkpoints.before"));
  write_file_atomic(here() / "all.jsonl", good);
  const auto over = run({"train", "--config", "training.yaml", "--force"});
  EXPECT_TRUE(over.ok()) << over.describe();
  EXPECT_TRUE(fs::exists(here() / "exp/checkpoints.before/last"));
}

TEST_F(Adapted, MarksMayStandWithoutBlanks) {
  prepare("owsm");
  const std::string good = read_file(here() / "all.jsonl");
  std::string tight = good;
  for (std::size_t at = 0; (at = tight.find(" <", at)) != std::string::npos;) tight.erase(at, 1);
  ASSERT_THAT(tight, HasSubstr("\"<eng><asr><0.00> one two<1.00>\""));
  std::vector<double> losses;
  for (const std::string& lines : {good, tight}) {
    write_file_atomic(here() / "all.jsonl", lines);
    const auto trained = train("init_param: pack\n", "s2t.S2TTask", "token_type: word");
    ASSERT_TRUE(trained.ok()) << trained.describe();
    EXPECT_THAT(trained.err, testing::Not(HasSubstr("cannot spell")));
    losses.push_back(metric("valid/loss"));
  }
  EXPECT_DOUBLE_EQ(losses[0], losses[1]);
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
