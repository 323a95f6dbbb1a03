#include "tutti/config/check.h"
#include "tests/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tutti/config/factory.h"
#include "tutti/config/merge.h"
#include "tutti/config/plugin.h"
#include "tutti/config/schemas/files.h"
#include "tutti/config/schemas/optim.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/systems/standard_checker.h"
#include "tutti/trainer/trainer_settings.h"

namespace tutti::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kHere = fs::path(in_source("tests/config"));

FileChecker checker_with_gpus(int count) {
  FileChecker checker = systems::standard_checker();
  checker.set_gpu_counter([count] { return count; });
  return checker;
}

Problems problems_of(const fs::path& file, int gpus = 8) {
  Problems problems;
  FileChecker checker = checker_with_gpus(gpus);
  load_checked({.files = {file}}, {}, checker, problems);
  return problems;
}

Problems problems_in(const std::string& text, std::optional<FileKind> kind = FileKind::kTraining) {
  Problems problems;
  const Node merged = parse_yaml(text, "t.yaml", problems);
  const Node root = resolve(merged, Resolvers::standard(), "t", problems);
  checker_with_gpus(8).check(kind, root, referenced_keys(merged), problems);
  return problems;
}

TEST(Seeds, EveryBlockPassesOrFailsWhereTheSeedSays) {
  const std::map<std::string, std::string> failing = {
      {"mistake_world_size_left_at_1",
       ":11:22: dataloader.train.dist_world_size: got 1, expected num_nodes x num_device = 2 x 8 = "
       "16\n"
       "  fix: set dist_world_size: ${num_nodes * num_device}"},
      {"mistake_total_shards",
       ":5:19: dataloader.train.total_shards: got 10, expected a multiple of dist_world_size = 8\n"
       "  fix: set total_shards: 16 (the next multiple)"},
      {"mistake_strategy_under_options",
       ":8:5: parallel.options.strategy: belongs to training, not to the parallel block\n"
       "  fix: move it to trainer.strategy"},
      {"mistake_cluster_keys_under_local",
       ":5:5: parallel.options.queue: an option of batch schedulers, got under env: local"},
      {"mistake_more_workers_than_gpus",
       ":3:14: parallel.n_workers: got 16, expected at most the number of visible GPUs = 8\n  fix: "
       "set n_workers: 8"},
  };
  int num_files = 0;
  for (const auto& entry : fs::directory_iterator(kHere / "seeds")) {
    const Problems problems = problems_of(entry.path());
    const auto found = failing.find(entry.path().stem().string());
    if (found == failing.end())
      EXPECT_EQ(problems.describe(), "") << entry.path();
    else
      EXPECT_THAT(problems.describe(), HasSubstr(entry.path().string() + found->second));
    ++num_files;
  }
  EXPECT_EQ(num_files, 26);
}

TEST(Seeds, ClusterKeysUnderLocalAreAllNamed) {
  const Problems problems = problems_of(kHere / "seeds/mistake_cluster_keys_under_local.yaml");
  EXPECT_EQ(problems.sorted().size(), 4U);
}

TEST(Check, TenMistakesComeOutTogetherSortedByLine) {
  const auto problems = problems_of(kHere / "ten_mistakes.yaml").sorted();
  std::vector<std::string> keys;
  int line = 0;
  for (const Problem& problem : problems) {
    keys.push_back(problem.key);
    EXPECT_GE(problem.mark.line, line) << problem.describe();
    line = problem.mark.line;
    EXPECT_FALSE(problem.what.empty());
  }
  EXPECT_THAT(keys, ::testing::ElementsAre(
                        "sed", "optimizer._target_", "scheduler.warmup_step", "trainer.accelerator",
                        "trainer.devices", "trainer.precision", "trainer.max_epochs",
                        "trainer.profiler", "parallel.n_workers", "parallel.options.walltime",
                        "dataloader.train.total_shards", "dataloader.train.dist_world_size"));
  EXPECT_THAT(problems[0].describe(),
              HasSubstr("ten_mistakes.yaml:3:1: sed: unknown key\n  fix: did you mean 'seed'?"));
  EXPECT_THAT(
      problems[1].describe(),
      HasSubstr("unknown optimizer 'torch.optim.Adma'\n  fix: did you mean 'torch.optim.Adam'?"));
  EXPECT_THAT(problems[2].describe(), HasSubstr("did you mean 'warmup_steps'?"));
  EXPECT_THAT(problems[4].describe(),
              HasSubstr("no key 'num_devices'\n  fix: did you mean 'num_device'?"));
}

TEST(Check, AGuessIsASlipOfTheNameItself) {
  const auto fix = [](const std::string& text) { return problems_in(text).describe(); };
  // Not another class of the same package.
  EXPECT_THAT(fix("optimizer: {_target_: torch.optim.Lion}\n"), HasSubstr("known: adam, adamw"));
  EXPECT_THAT(fix("trainer: {callbacks: [{_target_: lightning.pytorch.callbacks.EMA}]}\n"),
              HasSubstr("did you mean 'ema'?"));
  EXPECT_THAT(fix("optimizer: {_target_: torch.optm.AdamW}\n"), testing::Eq(""));
  EXPECT_THAT(fix("optimizer: {_target_: optim.Adamw}\n"), HasSubstr("did you mean 'adamw'?"));
  EXPECT_THAT(fix("optimizer: {_target_: adam, learning_rate: 0.1}\n"),
              HasSubstr("optimizer.learning_rate: is called lr here"));
  EXPECT_THAT(fix("learning_rate: 0.1\n"), HasSubstr("is called optimizer.lr here"));
}

TEST(Check, AClassNeedsNoPackage) {
  EXPECT_EQ(problems_in("optimizer: {_target_: AdamW, lr: 0.1}\nscheduler: {_target_: StepLR, "
                        "step_size: 2}\ntrainer: {logger: {_target_: CSVLogger, save_dir: x}, "
                        "callbacks: [{_target_: EarlyStopping, monitor: valid/loss}]}\n")
                .describe(),
            "");
  EXPECT_THAT(problems_in("trainer: {logger: {_target_: WandbLogger}}\n").describe(),
              HasSubstr("use TensorBoardLogger, csv, mlflow or jsonl"));
  // There are two of them.
  EXPECT_THAT(problems_in("model: {_target_: Speech2Text}\n", FileKind::kInference).describe(),
              HasSubstr("Speech2Text'?"));
}

TEST(Check, WarnsOfAMetricThatShallGetWorse) {
  const auto warnings = [](const std::string& text) {
    const Problems problems = problems_in(text);
    std::string out;
    for (const Problem& warning : problems.warnings()) out += warning.describe() + "\n";
    return out;
  };
  EXPECT_THAT(warnings("trainer: {callbacks: [{_target_: EarlyStopping, monitor: valid/loss_ctc, "
                       "mode: max}]}\n"),
              HasSubstr("mode: got max for valid/loss_ctc: the worst would count as best\n"
                        "  fix: use min"));
  EXPECT_THAT(warnings("trainer: {callbacks: [{_target_: ModelCheckpoint, monitor: valid/acc}]}\n"),
              HasSubstr("monitor: got min for valid/acc"));
  EXPECT_THAT(warnings("best_model_criterion: [[valid/cer, 3, max]]\n"), HasSubstr("use min"));
  EXPECT_THAT(warnings("best_model_criterion: [[valid/BLEU, 3, min]]\n"), HasSubstr("use max"));
  const std::string plateau = "torch.optim.lr_scheduler.ReduceLROnPlateau";
  EXPECT_THAT(warnings("scheduler: {_target_: " + plateau + ", mode: max}\n"),
              HasSubstr("scheduler.mode: got max for valid/loss"));
  EXPECT_THAT(warnings("scheduler: " + plateau + "\nscheduler_monitor: valid/acc\n"),
              HasSubstr("scheduler_monitor: got min for valid/acc"));
  EXPECT_EQ(
      warnings("scheduler: {_target_: " + plateau + ", mode: max}\nscheduler_monitor: valid/acc\n"),
      "");
  EXPECT_EQ(warnings("best_model_criterion: [[valid/acc, 3, max], [valid/loss, 3, min], "
                     "[valid/score, 3, min]]\n"),
            "");
}

TEST(Check, WarnsOfWhatTheEndOfTrainingComesBefore) {
  const auto warnings = [](const std::string& trainer) {
    const Problems problems = problems_in("trainer: {" + trainer + "}\n");
    EXPECT_TRUE(problems.empty());
    std::string out;
    for (const Problem& warning : problems.warnings()) out += warning.describe() + "\n";
    return out;
  };
  EXPECT_THAT(warnings("max_epochs: 2, min_epochs: 3"),
              HasSubstr("trainer.min_epochs: got 3, but max_epochs 2 ends training\n"
                        "  fix: give at most 2, or raise max_epochs"));
  EXPECT_THAT(warnings("max_steps: 5, min_steps: 9"), HasSubstr("got 9, but max_steps 5"));
  EXPECT_EQ(warnings("max_epochs: 3, min_epochs: 3, max_steps: -1, min_steps: 9"), "");
  const std::string swa = ", callbacks: [{_target_: swa, swa_lrs: 0.1, swa_epoch_start: 3}]";
  EXPECT_THAT(warnings("max_epochs: 2" + swa),
              HasSubstr("swa_epoch_start: got 3, but training ends after epoch 2"));
  EXPECT_EQ(warnings("max_epochs: 3" + swa), "");
}

TEST(Check, AKeyThatIsReferredToIsAVariable) {
  EXPECT_EQ(problems_in("my_dir: /data\nexp_dir: ${my_dir}/exp\n").describe(), "");
  EXPECT_THAT(problems_in("my_dir: /data\n").describe(), HasSubstr("my_dir: unknown key"));
  EXPECT_EQ(problems_in("n: 2\nnum_device: ${n * 2}\n").describe(), "");
}

TEST(Check, TrainerKeysInTheWrongPlace) {
  EXPECT_THAT(problems_in("strategy: ddp\n").describe(),
              HasSubstr("put it under trainer: trainer.strategy"));
  EXPECT_THAT(problems_in("trainer: {n_workers: 4}\n").describe(),
              HasSubstr("n_workers belongs to parallel"));
  EXPECT_THAT(problems_in("parallel: {env: local, devices: 4}\n").describe(),
              HasSubstr("move it to trainer.devices"));
}

TEST(Check, EveryLightningArgumentIsAnswered) {
  const std::vector<std::string> arguments = {"accelerator",
                                              "strategy",
                                              "devices",
                                              "num_nodes",
                                              "precision",
                                              "logger",
                                              "callbacks",
                                              "fast_dev_run",
                                              "max_epochs",
                                              "min_epochs",
                                              "max_steps",
                                              "min_steps",
                                              "max_time",
                                              "limit_train_batches",
                                              "limit_val_batches",
                                              "limit_test_batches",
                                              "limit_predict_batches",
                                              "overfit_batches",
                                              "val_check_interval",
                                              "check_val_every_n_epoch",
                                              "num_sanity_val_steps",
                                              "log_every_n_steps",
                                              "enable_checkpointing",
                                              "enable_progress_bar",
                                              "enable_model_summary",
                                              "accumulate_grad_batches",
                                              "gradient_clip_val",
                                              "gradient_clip_algorithm",
                                              "deterministic",
                                              "benchmark",
                                              "inference_mode",
                                              "use_distributed_sampler",
                                              "profiler",
                                              "detect_anomaly",
                                              "barebones",
                                              "plugins",
                                              "sync_batchnorm",
                                              "reload_dataloaders_every_n_epochs",
                                              "default_root_dir",
                                              "enable_autolog_hparams",
                                              "model_registry",
                                              "suggest_integrations"};
  EXPECT_EQ(arguments.size(), 42U);
  for (const auto& argument : arguments) {
    EXPECT_THAT(problems_in("trainer: {" + argument + ": {odd: value}}\n").describe(),
                ::testing::Not(HasSubstr("unknown key")))
        << argument;
    EXPECT_EQ(problems_in("trainer: {" + argument + ": null}\n").sorted().size(),
              argument == "check_val_every_n_epoch" ? 1U : 0U)
        << argument;
  }
  EXPECT_THAT(problems_in("trainer: {barebones: true}\n").describe(),
              HasSubstr("not supported\n  fix: set logger: false"));
  EXPECT_EQ(problems_in("trainer: {barebones: false}\n").describe(), "");
  for (const char* old : {"seed_everything", "terminate_on_nan", "track_grad_norm", "auto_lr_find",
                          "replace_sampler_ddp", "gpus"})
    EXPECT_THAT(problems_in("trainer: {" + std::string(old) + ": 1}\n").describe(),
                ::testing::Not(::testing::AnyOf(HasSubstr("unknown key"), HasSubstr("known keys"))))
        << old;
}

TEST(Check, FloatProductsHaveTorchsWords) {
  for (const std::string word : {"highest", "high", "medium"})
    EXPECT_EQ(problems_in("trainer: {float32_matmul_precision: " + word + "}\n").describe(), "");
  EXPECT_THAT(problems_in("trainer: {float32_matmul_precision: hihg}\n").describe(),
              HasSubstr("did you mean 'high'?"));
}

TEST(Check, DevicesInEverySpelling) {
  const auto devices = [](const std::string& text) {
    return parse_yaml("d: " + text + "\n", "t.yaml")["d"];
  };
  EXPECT_TRUE(devices("auto").as<Devices>().all);
  EXPECT_TRUE(devices("-1").as<Devices>().all);
  EXPECT_EQ(devices("4").as<Devices>().count, 4);
  EXPECT_EQ(devices("'3'").as<Devices>().count, 3);
  EXPECT_EQ(devices("[0, 3]").as<Devices>().ids, (std::vector<int>{0, 3}));
  EXPECT_EQ(devices("'0,3'").as<Devices>().ids, (std::vector<int>{0, 3}));
  for (const char* bad : {"0", "[]", "[1, 1]", "many", "-2", "{a: 1}", "2.5"})
    EXPECT_THROW(devices(bad).as<Devices>(), ConfigError) << bad;
}

TEST(Check, StrategiesByNameAndByTarget) {
  const auto strategy = [](const std::string& text) {
    Problems problems;
    const trainer::StrategySettings out =
        trainer::parse_strategy(parse_yaml("s: " + text + "\n", "t.yaml")["s"], problems);
    problems.throw_if_any();
    return out;
  };
  EXPECT_TRUE(strategy("ddp_find_unused_parameters_true").find_unused_parameters);
  EXPECT_TRUE(strategy("fsdp_cpu_offload").cpu_offload);
  EXPECT_EQ(
      strategy("{_target_: lightning.pytorch.strategies.DDPStrategy, find_unused_parameters: true}")
          .name,
      "ddp");
  EXPECT_EQ(strategy("{_target_: fsdp, units: [EncoderLayer], sharding_strategy: HYBRID_SHARD}")
                .sharding_strategy,
            "hybrid_shard");
  EXPECT_THROW(strategy("dpp"), ConfigError);
  EXPECT_THROW(strategy("deepspeed_stage_2"), ConfigError);
  EXPECT_THROW(strategy("{_target_: ddp, units: [x]}"), ConfigError);
}

TEST(Check, AmountsTellCountsFromParts) {
  const auto limit = [](const std::string& text) {
    return parse_yaml("l: " + text + "\n", "t.yaml")["l"].as<Amount>();
  };
  EXPECT_EQ(limit("1").of(8, ""), 1);
  EXPECT_EQ(limit("1.0").of(8, ""), 8);
  EXPECT_EQ(limit("0.25").of(8, ""), 2);
  EXPECT_THROW(limit("1.5"), ConfigError);
  EXPECT_THROW(limit("-1"), ConfigError);
}

TEST(Check, WorldSizeFromTheTrainerBlock) {
  const std::string text =
      "trainer: {devices: 4, num_nodes: 2}\ndataloader: {train: {total_shards: 8, dist_world_size: "
      "4}}\n";
  EXPECT_THAT(problems_in(text).describe(),
              HasSubstr("got 4, expected trainer.num_nodes x trainer.devices = 2 x 4 = 8"));
}

TEST(Check, OtherFiles) {
  EXPECT_EQ(
      problems_in("inference_dir: x\nmodel: {_target_: espnet2.bin.asr_inference.Speech2Text, "
                  "beam_size: 5, asr_model_file: a.pth}\n"
                  "input_key: speech\nprovider: {_target_: "
                  "espnet3.systems.base.inference_provider.InferenceProvider}\n"
                  "runner: {_target_: espnet3.systems.base.inference_runner.InferenceRunner}\n",
                  FileKind::kInference)
          .describe(),
      "");
  EXPECT_EQ(problems_in("metrics:\n  - metric: {_target_: espnet3.systems.asr.metrics.wer.WER, "
                        "ref_key: ref, hyp_key: hyp}\n    inputs: [ref, hyp]\n",
                        FileKind::kMetrics)
                .describe(),
            "");
  EXPECT_THAT(problems_in("metrics:\n  - metric: {_target_: espnet3.systems.asr.metrics.wer.WRE}\n",
                          FileKind::kMetrics)
                  .describe(),
              HasSubstr("did you mean"));
  EXPECT_THAT(problems_in("ui: {titel: x}\n", FileKind::kDemo).describe(),
              HasSubstr("did you mean 'title'?"));
  EXPECT_THAT(problems_in("trainer: {devices: 1}\n", FileKind::kInference).describe(),
              HasSubstr("trainer: is for training.yaml"));
}

TEST(Check, KindIsDetected) {
  const Node none = parse_yaml("{}", "x.yaml");
  EXPECT_EQ(detect_kind({"conf/training_e_branchformer.yaml"}, none), FileKind::kTraining);
  EXPECT_EQ(detect_kind({"conf/inference.yaml"}, none), FileKind::kInference);
  EXPECT_EQ(detect_kind({"infer_on_train_set.yaml"}, none), FileKind::kInference);
  EXPECT_EQ(detect_kind({"train_then_infer.yaml"}, none), FileKind::kTraining);
  EXPECT_EQ(detect_kind({"parallel_slurm.yaml"}, none), FileKind::kParallel);
  EXPECT_EQ(detect_kind({"a.yaml"}, parse_yaml("metrics: []", "a.yaml")), FileKind::kMetrics);
  EXPECT_EQ(
      detect_kind({"a.yaml"}, parse_yaml("model: {beam_size: 3}\ndataset: {test: []}", "a.yaml")),
      FileKind::kInference);
  EXPECT_EQ(detect_kind({"a.yaml"}, none), std::nullopt);
}

TEST(GpuCount, ReadsTheListAsCudaDoes) {
  EXPECT_EQ(count_devices_in_list("0,1,2"), 3);
  EXPECT_EQ(count_devices_in_list("0,-1,2"), 1);
  EXPECT_EQ(count_devices_in_list(""), 0);
  EXPECT_EQ(count_devices_in_list("GPU-8932f937,MIG-1/2/3"), 2);
  EXPECT_EQ(count_devices_in_list("-1"), 0);
  EXPECT_EQ(count_devices_in_list("NoDevFiles"), 0);
  EXPECT_EQ(count_devices_in_list("GPU-1,GPU-2,-1,3"), 2);
  ::setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  EXPECT_EQ(count_visible_gpus(), 2);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

// A container that was given GPU 3 has /dev/nvidia3 alone, while the driver lists the host's.
TEST(GpuCount, CountsTheDevicesThatAreHere) {
  TempFolder folder;
  for (const char* name : {"nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps", "tty0"})
    write_file_atomic(folder.path() / name, "");
  EXPECT_EQ(count_device_files(folder.path()), 1);
  write_file_atomic(folder.path() / "nvidia12", "");
  EXPECT_EQ(count_device_files(folder.path()), 2);
  EXPECT_EQ(count_device_files(folder.path() / "nowhere"), 0);
}

TEST(Catalogue, AliasesOfOtherProjects) {
  const Catalogue catalogue = standard_catalogue();
  EXPECT_EQ(catalogue.find("optimizer", "torch.optim.AdamW")->name, "adamw");
  EXPECT_EQ(catalogue.find("optimizer", "torch.optim.adamw.AdamW")->name, "adamw");
  EXPECT_EQ(catalogue.find("callback", "pytorch_lightning.callbacks.EarlyStopping")->name,
            "early_stopping");
  EXPECT_EQ(catalogue.find("logger", "lightning.pytorch.loggers.TensorBoardLogger")->name,
            "tensorboard");
  EXPECT_EQ(catalogue.find("optimizer", "mine.optim.AdamW"), nullptr);
  Problems problems;
  catalogue.check("optimizer", parse_yaml("{_target_: torch.optim.LBFGS}", "t.yaml"), problems);
  EXPECT_THAT(problems.describe(), HasSubstr("fix: use torch.optim.AdamW"));
}

struct Product {
  double lr = 0;
};

TEST(Factory, MakesByAnyNameAndReadsSettings) {
  Factory<Product, int> factory("optimizer");
  factory.add(adam_schema(), [](const AdamSettings& settings, int scale) {
    return std::make_unique<Product>(Product{settings.lr * scale});
  });
  const Catalogue catalogue = standard_catalogue();
  EXPECT_DOUBLE_EQ(
      factory.make(catalogue, parse_yaml("{_target_: torch.optim.Adam, lr: 2}", "t.yaml"), 3)->lr,
      6);
  EXPECT_THROW(
      factory.make(catalogue, parse_yaml("{_target_: torch.optim.Adam, lr: -2}", "t.yaml"), 3),
      ConfigError);
  EXPECT_THROW(factory.make(catalogue, parse_yaml("{_target_: sgd}", "t.yaml"), 3), ConfigError);
  EXPECT_THROW(factory.make(catalogue, parse_yaml("{lr: 2}", "t.yaml"), 3), ConfigError);
}

TEST(Plugins, ALibraryAddsComponentsAndResolvers) {
  Problems problems;
  FileChecker checker = checker_with_gpus(0);
  const TempFolder folder;
  const std::string library = in_bin("libtutti_test_plugin.so");
  const fs::path file = folder.path() / "training.yaml";
  write_file_atomic(
      file, "plugins: [" + library +
                "]\nexp_tag: ${shout:hello}\noptimizer: {_target_: test_optimizer, speed: 3}\n");
  const Node root = load_checked({.files = {file}}, {}, checker, problems);
  EXPECT_EQ(problems.describe(), "");
  EXPECT_EQ(root["exp_tag"].raw(), "hello!");
  write_file_atomic(file, "plugins: [libnone_such.so]\n");
  load_checked({.files = {file}}, {}, checker, problems);
  EXPECT_THAT(problems.describe(),
              HasSubstr("training.yaml:1:11: plugins.0: cannot load the plugin: libnone_such.so"));
}

TEST(Plugins, OnesThatCannotServeAreRefusedAtTheirLine) {
  const TempFolder folder;
  const fs::path file = folder.path() / "training.yaml";
  const auto problems_with = [&](const std::string& plugins) {
    Problems problems;
    FileChecker checker = checker_with_gpus(0);
    write_file_atomic(file, plugins);
    load_checked({.files = {file}}, {}, checker, problems);
    return problems.describe();
  };
  const auto bad = [](int fault) {
    return in_bin("libtutti_bad_plugin_") + std::to_string(fault) + ".so";
  };
  EXPECT_THAT(problems_with("plugins: [" + bad(1) + "]\n"),
              AllOf(HasSubstr("training.yaml:1:11: plugins.0: "),
                    HasSubstr("built for Tutti 0.0.9, expected " TUTTI_VERSION)));
  EXPECT_THAT(problems_with("plugins: [" + bad(2) + "]\n"),
              HasSubstr("the plugin failed to register: no licence"));
  EXPECT_THAT(problems_with("plugins: [" + bad(3) + "]\n"),
              AllOf(HasSubstr("undefined symbol: tutti::config::nobody_has_this()"),
                    HasSubstr("headers of this Tutti")));
  EXPECT_THAT(problems_with("plugins: [" + bad(4) + "]\n"), HasSubstr("no TUTTI_PLUGIN"));
  // Those of parallel blocks are loaded by the same code.
  EXPECT_THAT(problems_with("parallel: {env: local, n_workers: 1, plugins: [" + bad(2) + "]}\n"),
              HasSubstr("parallel.plugins.0: the plugin failed to register: no licence"));
  // There it may be a library that items need and that registers nothing.
  EXPECT_EQ(problems_with("parallel: {env: local, n_workers: 1, plugins: [" + bad(4) + "]}\n"), "");
}

}  // namespace
}  // namespace tutti::config
