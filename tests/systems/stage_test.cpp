#include "tutti/systems/stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/experiment_config.h"
#include "tutti/systems/preprocess.h"
#include "tutti/systems/training/experiment.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<Stage>& stages) {
  std::vector<std::string> names;
  for (const auto& stage : stages) names.push_back(stage.name);
  return names;
}

TEST(Stages, RunInCanonicalOrderWhateverWasTyped) {
  EXPECT_EQ(names_of(select_stages({"measure", "train", "infer"})),
            (std::vector<std::string>{"train", "infer", "measure"}));
  EXPECT_EQ(names_of(select_stages(5, 6)), (std::vector<std::string>{"train", "infer"}));
  EXPECT_EQ(select_stages({"all"}).size(), 8U) << "a demo never ends, so all leaves it out";
}

TEST(Stages, UnknownNameIsAnErrorWithASuggestion) {
  try {
    select_stages({"trian"});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("did you mean 'train'?"));
  }
}

TEST(Context, TheExperimentFlowsFromTrainingToInferenceToMetrics) {
  TempFolder folder;
  const auto write = [&](const char* name, const char* text) {
    write_file_atomic(folder.path() / name, text);
    return folder.path() / name;
  };
  const StageContext context =
      load_context({.training = {write("big.yaml", "recipe_dir: /r\nexp_tag: big\n")},
                    .inference = {write(
                        "beam5.yaml", "exp_tag: other\ninference_dir: ${exp_dir}/${self_name:}\n")},
                    .metrics = {write("metrics.yaml", "metrics: []\n")}});
  EXPECT_EQ(context.training["exp_dir"].raw(), "/r/exp/big");
  EXPECT_EQ(context.inference["exp_dir"].raw(), "/r/exp/big");
  EXPECT_EQ(context.inference["inference_dir"].raw(), "/r/exp/big/beam5");
  EXPECT_EQ(context.metrics["inference_dir"].raw(), "/r/exp/big/beam5");
}

TEST(Context, AnOverrideGoesToTheConfigsThatHaveItsKey) {
  TempFolder folder;
  write_file_atomic(folder.path() / "t.yaml", "trainer: {devices: 1}\nparallel: {n_workers: 1}\n");
  write_file_atomic(folder.path() / "i.yaml", "batch_size: 1\nparallel: {n_workers: 1}\n");
  const StageContext context =
      load_context({.training = {folder.path() / "t.yaml"},
                    .inference = {folder.path() / "i.yaml"},
                    .overrides = {"trainer.devices=4", "batch_size=5", "parallel.n_workers=3"}});
  EXPECT_EQ(context.training["trainer"]["devices"].as<int>(), 4);
  EXPECT_FALSE(context.inference["trainer"].defined());
  EXPECT_EQ(context.inference["batch_size"].as<int>(), 5);
  EXPECT_EQ(context.training["parallel"]["n_workers"].as<int>(), 3);
  EXPECT_EQ(context.inference["parallel"]["n_workers"].as<int>(), 3);
  EXPECT_THROW(
      load_context({.training = {folder.path() / "t.yaml"}, .overrides = {"trainer.device=4"}}),
      ConfigError);
}

TEST(Context, EveryProblemOfEveryFileIsReportedBeforeAnythingRuns) {
  TempFolder folder;
  write_file_atomic(folder.path() / "t.yaml", "trainer: {max_epoch: 1}\n");
  write_file_atomic(folder.path() / "i.yaml", "beam_size: 1\n");
  try {
    load_context({.training = {folder.path() / "t.yaml"}, .inference = {folder.path() / "i.yaml"}});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("did you mean 'max_epochs'"));
    EXPECT_THAT(e.what(), HasSubstr("beam_size: unknown key"));
  }
}

TEST(Context, WithoutATrainingConfigTheExperimentMustBeNamed) {
  TempFolder folder;
  write_file_atomic(folder.path() / "i.yaml", "batch_size: 2\n");
  EXPECT_THROW(load_context({.inference = {folder.path() / "i.yaml"}}), ConfigError);
  write_file_atomic(folder.path() / "i.yaml", "exp_tag: big\n");
  EXPECT_NO_THROW(load_context({.inference = {folder.path() / "i.yaml"}}));
}

TEST(Context, FilesSayOnlyWhatDiffersFromTheTemplate) {
  TempFolder folder;
  write_file_atomic(
      folder.path() / "t.yaml",
      "optimizer: {lr: 0.005}\nscheduler: {_target_: espnet2.schedulers.noam_lr.NoamLR, "
      "model_size: 256}\n");
  const StageContext context = load_context({.training = {folder.path() / "t.yaml"}});
  EXPECT_EQ(context.training["optimizer"]["_target_"].raw(), "torch.optim.Adam");
  EXPECT_EQ(context.training["optimizer"]["lr"].as<double>(), 0.005);
  EXPECT_FALSE(context.training["scheduler"]["warmup_steps"].defined());
  EXPECT_EQ(context.training["trainer"]["max_epochs"].as<int>(), 100);
  EXPECT_EQ(context.folder("data_dir"), std::filesystem::current_path() / "data");
}

std::vector<std::string> different_keys(const char* before, const char* now,
                                        const std::vector<std::string>& accepted = {}) {
  std::vector<std::string> keys;
  for (const auto& d :
       config_differences(config::to_json(config::parse_yaml(before, "before")),
                          config::to_json(config::parse_yaml(now, "now")), accepted))
    keys.push_back(d.key);
  return keys;
}

TEST(Experiment, WhatChangesWeightsIsADifferenceWhatDoesNotIsNone) {
  const char* before =
      "recipe_dir: /a/r\ndata_dir: /a/r/data\nexp_dir: /a/r/exp/x\n"
      "dataset: {train: [{manifest: /a/r/data/train.jsonl}]}\n"
      "optimizer: {lr: 0.01, betas: [0.9, 0.98]}\n"
      "dataloader: {train: {num_workers: 2, batch_size: 4}}\n"
      "trainer: {max_epochs: 5, devices: 2, precision: 32,\n"
      "  callbacks: [{_target_: lightning.pytorch.callbacks.ModelCheckpoint, save_top_k: 3}]}\n";
  EXPECT_TRUE(different_keys(before, before).empty());
  const char* moved_and_longer =
      "recipe_dir: /b/r\ndata_dir: /b/r/data\nexp_dir: /b/r/exp/x\n"
      "dataset: {train: [{manifest: /b/r/data/train.jsonl}]}\n"
      "optimizer: {lr: 0.01, betas: [0.9, 0.98]}\n"
      "dataloader: {train: {num_workers: 8, batch_size: 4}}\n"
      "trainer: {max_epochs: 50, devices: 8, num_nodes: 2, strategy: ddp, precision: 32}\n";
  EXPECT_TRUE(different_keys(before, moved_and_longer).empty());
  const char* other =
      "recipe_dir: /a/r\ndata_dir: /a/r/data\nexp_dir: /a/r/exp/x\n"
      "dataset: {train: [{manifest: /a/r/data/all.jsonl}]}\n"
      "optimizer: {lr: 0.001, betas: [0.9, 0.98], weight_decay: 0.1}\n"
      "dataloader: {train: {num_workers: 2, batch_size: 4}}\n"
      "trainer: {max_epochs: 5, devices: 2, precision: bf16-mixed}\n";
  EXPECT_EQ(different_keys(before, other),
            (std::vector<std::string>{"dataset.train.0.manifest", "optimizer.lr",
                                      "optimizer.weight_decay", "trainer.precision"}));
  EXPECT_EQ(different_keys(before, other, {"optimizer", "trainer.precision"}),
            (std::vector<std::string>{"dataset.train.0.manifest"}));
}

TEST(DataSource, IsNamedByTheEntryOrByTheRecipesFolder) {
  const auto config = config::parse_yaml(
      "recipe_dir: /x/egs3/mini_an4/asr\n"
      "entries:\n"
      "  - {data_src_args: {split: train}}\n"
      "  - {data_src: fsdd/asr}\n"
      "  - {data_src_args: {manifest: a.jsonl}}\n",
      "t");
  EXPECT_EQ(data_source_of(config, config["entries"][0]), "mini_an4");
  EXPECT_EQ(data_source_of(config, config["entries"][1]), "fsdd/asr");
  EXPECT_EQ(data_source_of(config, config["entries"][2]), "");
}

TEST(Context, AStageWithoutItsConfigSaysWhichFlagIsMissing) {
  try {
    run_stages(select_stages({"infer"}), StageContext{});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("needs --config FILE, or --inference_config FILE"));
    EXPECT_EQ(e.fix(), "name its config file, as in: --config conf/inference.yaml");
  }
  try {  // of several stages --config is that of training
    run_stages(select_stages({"infer", "measure"}), StageContext{});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("needs --inference_config FILE"));
  }
}

TEST(Preprocessing, DecodingHearsWhatValidationDoes) {
  const auto training = config::parse_yaml(
      "dataset: {preprocessor: {speech_volume_normalize: 0.5, max_samples: 10}}\n", "t");
  const auto prepare = make_inference_prepare(training);
  data::Sample sample{.uid = "u", .speech = std::vector<float>(100, 0.1F), .sample_rate = 16000};
  prepare(sample);
  EXPECT_FLOAT_EQ(sample.speech[0], 0.5F);
  sample.speech[3] = std::nanf("");
  EXPECT_THROW(prepare(sample), DataError);
}

TEST(ExperimentConfig, FollowsItsFolder) {
  TempFolder folder;
  const auto recipe = folder.path() / "new" / "recipe";
  std::filesystem::create_directories(recipe / "exp/tag");
  std::filesystem::create_directories(recipe / "data");
  write_file_atomic(recipe / "data/tokens.txt", "a\n");
  write_file_atomic(recipe / "exp/tag/config.yaml",
                    "exp_dir: /old/recipe/exp/tag\nmodel: {token_list: "
                    "/old/recipe/data/tokens.txt, other: /old/recipe/data/absent, far: /etc}\n");
  const auto config = read_experiment_config(recipe / "exp/tag/config.yaml");
  EXPECT_EQ(config["model"]["token_list"].raw(), (recipe / "data/tokens.txt").string());
  EXPECT_EQ(config["model"]["other"].raw(), "/old/recipe/data/absent");
  EXPECT_EQ(config["model"]["far"].raw(), "/etc");
}

TEST(ExperimentConfig, FollowsItsFolderAlsoUnderAnotherName) {
  TempFolder folder;
  const auto recipe = folder.path() / "renamed";
  std::filesystem::create_directories(recipe / "exp/tag");
  std::filesystem::create_directories(recipe / "data");
  write_file_atomic(recipe / "data/tokens.txt", "a\n");
  write_file_atomic(recipe / "exp/tag/config.yaml",
                    "recipe_dir: /old/recipe/\nexp_dir: /old/recipe//exp/tag/\nmodel: {token_list: "
                    "/old/recipe//data/tokens.txt, token: /, near: /old/recipe2}\n");
  const auto config = read_experiment_config(recipe / "exp/tag/config.yaml");
  EXPECT_EQ(config["recipe_dir"].raw(), recipe.string());
  EXPECT_EQ(config["exp_dir"].raw(), (recipe / "exp/tag").string());
  EXPECT_EQ(config["model"]["token_list"].raw(), (recipe / "data/tokens.txt").string());
  EXPECT_EQ(config["model"]["token"].raw(), "/");
  EXPECT_EQ(config["model"]["near"].raw(), "/old/recipe2");
}

}  // namespace
}  // namespace tutti::systems
