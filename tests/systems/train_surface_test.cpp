// Optimizers, schedules, groups, callbacks, loggers and errors of training, from the config to the
// files it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <thread>

#include "tests/places.h"
#include "tests/systems/toy_recipe.h"
#include "tests/trainer/event_records.h"
#include "tutti/core/text.h"
#include "tutti/trainer/checkpoint/weights.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kCallbacks = "++trainer.callbacks=";
const std::string kLightning = "lightning.pytorch.callbacks.";

trainer::TensorMap weights_in(const fs::path& path, bool trained = false) {
  trainer::TensorMap out;
  const auto source = trainer::open_weights(path, trained);
  for (const auto& [name, spec] : source->specs()) out[name] = source->read(name);
  return out;
}

fs::path average_of(const ToyRecipe& recipe) {
  return recipe.path() / "exp/checkpoints/valid.loss.ave_2best.safetensors";
}

// The moving average is what the run leaves: best files, their average, the last checkpoint. The
// weights behind it are those of a run without.
TEST(TrainSurface, TheMovingAverageIsWhatIsDelivered) {
  const ToyRecipe plain, ema;
  ASSERT_TRUE(plain.train().ok());
  const auto result =
      ema.train({kCallbacks + "[{_target_: " + kLightning + "EMAWeightAveraging, decay: 0.9}]"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_FALSE(
      weights_in(average_of(plain)).at("weight").equal(weights_in(average_of(ema)).at("weight")));
  const fs::path saves = "exp/checkpoints";
  EXPECT_TRUE(weights_in(plain.path() / saves)
                  .at("weight")
                  .equal(weights_in(ema.path() / saves, /*trained=*/true).at("weight")));
  EXPECT_FALSE(weights_in(plain.path() / saves)
                   .at("weight")
                   .equal(weights_in(ema.path() / saves).at("weight")));
}

TEST(TrainSurface, ASecondAverageOfTheWeightsIsRefused) {
  const ToyRecipe recipe;
  const auto result = recipe.train({kCallbacks + "[{_target_: " + kLightning +
                                    "EMAWeightAveraging}, {_target_: " + kLightning +
                                    "StochasticWeightAveraging, swa_lrs: 0.01}]"});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_THAT(result.err, testing::AllOf(HasSubstr("a second average of the weights"),
                                         HasSubstr("keep one of them")));
}

TEST(TrainSurface, SchedulesOptimizersAndGroupsByConfig) {
  const ToyRecipe recipe;
  write_file_atomic(recipe.path() / "more.yaml", R"(
optimizer: {_target_: torch.optim.RAdam, lr: 0.1}
param_groups: [{match: bias, lr: 0.0}]
scheduler:
  _target_: torch.optim.lr_scheduler.SequentialLR
  schedulers:
    - {_target_: torch.optim.lr_scheduler.LinearLR, start_factor: 0.5, total_iters: 2}
    - {_target_: torch.optim.lr_scheduler.StepLR, step_size: 3, gamma: 0.1}
  milestones: [2]
trainer: {accumulate_grad_batches: {0: 4, 1: 1}}
)");
  const auto result = recipe.train({"more.yaml"});
  ASSERT_TRUE(result.ok()) << result.describe();
  // 1 update in the first epoch, 4 in each of the others
  EXPECT_THAT(recipe.series("optim0_lr0"),
              testing::Pointwise(testing::DoubleNear(1e-9),
                                 {0.05, 0.075, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001}));
  EXPECT_THAT(recipe.series("optim0_lr1"), testing::Each(0.0));
  const auto weights = weights_in(recipe.path() / "exp/checkpoints");
  EXPECT_TRUE(weights.at("bias").equal(torch::zeros({2})));
}

// Each moves its own parameters, by one loss, as one optimizer of the same kind would.
TEST(TrainSurface, SeveralOptimizersOfOneLoss) {
  const ToyRecipe one, two, shards;
  const std::string in_order = "dataloader.train.shuffle=false";
  const std::string unclipped = "trainer.gradient_clip_val=0";  // else each has a norm of its own
  // A recipe without a scheduler has a warm-up by default, named optimizers have none.
  const auto alone = one.train({in_order, unclipped, "++scheduler={_target_: constant}"});
  ASSERT_TRUE(alone.ok()) << alone.describe();
  EXPECT_THAT(alone.err, Not(HasSubstr("default scheduler")));
  for (const ToyRecipe* recipe : {&two, &shards}) {
    std::string yaml = recipe->read("train.yaml");
    const std::string before = "optimizer: {_target_: torch.optim.SGD, lr: 0.05}";
    yaml.replace(yaml.find(before), before.size(),
                 "optimizers: {w: {optimizer: {_target_: torch.optim.SGD, lr: 0.05}, params: "
                 "weight}, rest: {optimizer: {_target_: torch.optim.SGD, lr: 0.05}, params: "
                 "[bias, \"no*\"]}}");
    write_file_atomic(recipe->path() / "train.yaml", yaml);
  }
  const auto result = two.train({in_order, unclipped});
  ASSERT_TRUE(result.ok()) << result.describe();
  const auto sharded = shards.train({in_order, unclipped, "num_device=2",
                                     "dataloader.train.batch_size=2", "++trainer.strategy=fsdp"});
  ASSERT_TRUE(sharded.ok()) << sharded.describe();
  const fs::path saves = "exp/checkpoints";
  const auto want = weights_in(one.path() / saves);
  for (const char* name : {"weight", "bias"}) {
    EXPECT_TRUE(want.at(name).equal(weights_in(two.path() / saves).at(name))) << name;
    EXPECT_TRUE(torch::allclose(want.at(name), weights_in(shards.path() / saves).at(name))) << name;
  }
  // One file of it, as of any other.
  const fs::path file = shards.path() / "one.safetensors";
  const auto merged =
      run_command({.argv = {in_bin("tutti"), "checkpoint", "merge", shards.path() / saves, file}});
  ASSERT_TRUE(merged.ok()) << merged.describe();
  EXPECT_TRUE(torch::allclose(want.at("weight"), weights_in(file).at("weight")));
}

TEST(TrainSurface, WhatPeopleMayNotExpectIsToldAtTheStart) {
  const ToyRecipe recipe;
  const auto result = recipe.train({"best_model_criterion=[[valid/loss, 2, max]]"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("default scheduler: WarmupLR with 15000 steps of warm-up"));
  EXPECT_THAT(result.err,
              HasSubstr("default clipping: gradients at 1.0 (trainer.gradient_clip_val: 0"));
  EXPECT_THAT(result.err, HasSubstr("got max for valid/loss: the worst would count as best"));
}

// Before the stages in front of it have done anything.
TEST(TrainSurface, MoreRanksThanGpusAreRefusedAtOnce) {
  const ToyRecipe recipe;
  const auto result = run_command(
      {.argv = {in_bin("tutti"), "run", "--stages", "collect_stats", "train", "--training_config",
                "train.yaml", "trainer.accelerator=gpu", "num_device=4"},
       .env = {{"CUDA_VISIBLE_DEVICES", "GPU-0,GPU-1"}},
       .cwd = recipe.path(),
       .timeout = std::chrono::minutes(3)});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("devices: 4 ranks on"));
  EXPECT_THAT(result.err, HasSubstr("but 2 GPU(s) are visible"));
  EXPECT_FALSE(recipe.has("exp"));
}

// What the refusal shows is pasted as it stands.
TEST(TrainSurface, WithoutValidationsThereAreNoBest) {
  const ToyRecipe recipe;
  const std::string off = "++trainer.limit_val_batches=0";
  const auto refused = recipe.train({off});
  EXPECT_EQ(refused.exit_code, 2) << refused.describe();
  const std::string advice = "or add to the command: ";
  const auto at = refused.err.find(advice);
  ASSERT_NE(at, std::string::npos) << refused.describe();
  const std::string line = split(refused.err.substr(at + advice.size()), '\n').at(0);
  std::string command;
  for (const auto& word : recipe.words({off})) command += shell_quote(word) + " ";
  const auto result = run_command({.argv = {"sh", "-c", command + line},
                                   .env = {{"OMP_NUM_THREADS", "1"}},
                                   .cwd = recipe.path(),
                                   .timeout = std::chrono::minutes(3)});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_TRUE(recipe.series("valid/loss").empty());
}

TEST(TrainSurface, AGroupThatTakesNothingIsAnErrorBeforeTraining) {
  const ToyRecipe recipe;
  const auto result = recipe.train({"++param_groups=[{match: norm, weight_decay: 0}]"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("takes no parameter; the first are weight, bias"));
}

TEST(TrainSurface, ProfilerLoggersAndDeviceStats) {
  const ToyRecipe recipe;
  write_file_atomic(recipe.path() / "more.yaml", R"(
trainer:
  profiler: {_target_: lightning.pytorch.profilers.PyTorchProfiler, first_step: 2, num_steps: 2}
  callbacks: [{_target_: lightning.pytorch.callbacks.DeviceStatsMonitor}]
  logger:
    - {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: logs}
    - {_target_: lightning.pytorch.loggers.MLFlowLogger, experiment_name: toy, save_dir: mlruns}
)");
  const auto result = recipe.train({"more.yaml"});
  ASSERT_TRUE(result.ok()) << result.describe();
  const Json trace = parse_json(recipe.read("exp/trace-rank0.json"), "trace");
  EXPECT_GT(trace["traceEvents"].size(), 10u);
  EXPECT_EQ(trace["traceEvents"][0]["ph"], "X");
  const auto lines = split(trim(recipe.read("logs/lightning_logs/version_0/metrics.csv")), '\n');
  EXPECT_THAT(lines[0], testing::StartsWith("device/"));
  EXPECT_THAT(lines[0], HasSubstr(",epoch,optim0_lr0,step,"));
  EXPECT_GT(recipe.series("device/process_bytes").back(), 1e6);
  bool found = false;
  for (const auto& entry : fs::recursive_directory_iterator(recipe.path() / "mlruns"))
    found = found || entry.path().string().ends_with("metrics/valid/loss");
  EXPECT_TRUE(found);
}

// The steps of which a log has training numbers, in order.
std::vector<int> steps_in_jsonl(const ToyRecipe& recipe) {
  std::vector<int> steps;
  for (const Json& line : recipe.metrics())
    if (line.contains("train/loss")) steps.push_back(line["step"].get<int>());
  return steps;
}

std::vector<int> steps_in_csv(
    const ToyRecipe& recipe,
    const std::string& file = "logs/lightning_logs/version_0/metrics.csv") {
  std::vector<int> steps;
  const auto lines = split(trim(recipe.read(file)), '\n');
  const auto header = split(lines[0], ',');
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto fields = split(lines[i], ',');
    if (!fields.at(column("train/loss")).empty())
      steps.push_back(std::stoi(fields.at(column("step"))));
  }
  return steps;
}

std::vector<int> steps_in_mlflow(const ToyRecipe& recipe) {
  std::vector<int> steps;
  for (const auto& entry : fs::recursive_directory_iterator(recipe.path() / "mlruns"))
    if (entry.path().string().ends_with("metrics/train/loss"))
      for (const std::string& line : split(trim(read_file(entry.path())), '\n'))
        steps.push_back(std::stoi(split(line, ' ').at(2)));
  return steps;
}

std::vector<int> steps_in_tensorboard(const ToyRecipe& recipe,
                                      const std::string& folder = "tb/toy/version_0") {
  std::vector<int> steps;
  for (const auto& entry : fs::directory_iterator(recipe.path() / folder)) {
    if (!entry.path().filename().string().starts_with("events.out.")) continue;
    for (const std::string& event : trainer::records(read_file(entry.path())))
      if (event.find("train/loss\x15") != std::string::npos)
        steps.push_back(event.at(10));  // after the time; below 128 it is one byte
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<int> one_to(int last) {
  std::vector<int> all(static_cast<std::size_t>(last));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

TEST(TrainSurface, EveryLogHasEveryStepOnceAfterAKill) {
  const ToyRecipe recipe(kToyForward, /*work=*/1500);
  write_file_atomic(recipe.path() / "more.yaml", R"(
trainer:
  max_epochs: 4
  callbacks: [{_target_: lightning.pytorch.callbacks.ModelCheckpoint, every_n_train_steps: 3}]
  logger:
    - {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: logs}
    - {_target_: lightning.pytorch.loggers.TensorBoardLogger, save_dir: tb, name: toy}
    - {_target_: lightning.pytorch.loggers.MLFlowLogger, experiment_name: toy, save_dir: mlruns}
)");
  Process process = Process::start({.argv = recipe.words({"more.yaml"}),
                                    .env = {{"OMP_NUM_THREADS", "1"}},
                                    .cwd = recipe.path(),
                                    .stdout_path = recipe.path() / "killed.log"});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  const auto logged = [&] {
    return recipe.has("exp/metrics.jsonl") ? split(recipe.read("exp/metrics.jsonl"), '\n').size()
                                           : 0;
  };
  while (logged() < 6 && !process.poll() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  process.signal_group(SIGKILL);
  EXPECT_EQ(process.wait().signal, SIGKILL) << recipe.read("killed.log");
  const auto result = recipe.train({"more.yaml"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(result.out + result.err, HasSubstr("resumed from"));
  const std::vector<int> all = one_to(16);
  EXPECT_EQ(steps_in_jsonl(recipe), all);
  EXPECT_EQ(steps_in_csv(recipe), all);
  EXPECT_EQ(steps_in_mlflow(recipe), all);
  EXPECT_EQ(steps_in_tensorboard(recipe), all);
}

// Experiments may log under one folder: each has its own version there, also when it goes on or
// begins again.
TEST(TrainSurface, NoRunCutsTheLogsOfAnother) {
  const ToyRecipe recipe;
  write_file_atomic(recipe.path() / "more.yaml", R"(
trainer:
  logger:
    - {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: logs}
    - {_target_: lightning.pytorch.loggers.TensorBoardLogger, save_dir: tb, name: toy}
)");
  const std::string csv = "logs/lightning_logs/version_";
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"more.yaml"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = recipe.train(words);
    ASSERT_TRUE(result.ok()) << result.describe();
  };
  train({});
  train({"exp_dir=./other"});
  EXPECT_EQ(steps_in_csv(recipe), one_to(12));
  EXPECT_EQ(steps_in_csv(recipe, csv + "1/metrics.csv"), one_to(12));
  EXPECT_EQ(steps_in_tensorboard(recipe), one_to(12));
  EXPECT_EQ(steps_in_tensorboard(recipe, "tb/toy/version_1"), one_to(12));

  train({"trainer.max_epochs=4"});  // goes on in its own
  EXPECT_EQ(steps_in_csv(recipe), one_to(16));
  EXPECT_EQ(steps_in_tensorboard(recipe), one_to(16));
  EXPECT_EQ(steps_in_csv(recipe, csv + "1/metrics.csv"), one_to(12));
  EXPECT_FALSE(recipe.has(csv + "2"));

  train({"trainer.max_epochs=2", "--force"});
  EXPECT_EQ(steps_in_csv(recipe), one_to(16));
  EXPECT_EQ(steps_in_tensorboard(recipe), one_to(16));
  EXPECT_EQ(steps_in_csv(recipe, csv + "2/metrics.csv"), one_to(8));
  EXPECT_EQ(steps_in_tensorboard(recipe, "tb/toy/version_2"), one_to(8));
}

TEST(TrainSurface, AnotherRunsLogsInTheNamedVersionAreMovedAside) {
  const ToyRecipe recipe;
  write_file_atomic(recipe.path() / "more.yaml", R"(
trainer:
  max_epochs: 1
  logger:
    - {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: logs, version: 7}
    - {_target_: lightning.pytorch.loggers.TensorBoardLogger, save_dir: logs, version: 7}
)");
  const std::string folder = "logs/lightning_logs/version_7";
  for (const char* exp_dir : {"exp_dir=./one", "exp_dir=./two", "exp_dir=./three"}) {
    const auto result = recipe.train({"more.yaml", exp_dir});
    ASSERT_TRUE(result.ok()) << result.describe();
  }
  EXPECT_EQ(steps_in_csv(recipe, folder + "/metrics.csv"), one_to(4));
  EXPECT_EQ(steps_in_tensorboard(recipe, folder), one_to(4));
  for (const char* aside : {"/before", "/before.1", "/before.2", "/before.3"}) {
    const bool table = recipe.has(folder + aside + "/metrics.csv");  // or event files
    EXPECT_EQ(table ? steps_in_csv(recipe, folder + aside + "/metrics.csv")
                    : steps_in_tensorboard(recipe, folder + aside),
              one_to(4))
        << aside;
  }
}

TEST(TrainSurface, NothingIsSavedWithoutCheckpointing) {
  const ToyRecipe recipe;
  const auto result = recipe.train({"++trainer.enable_checkpointing=false"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_FALSE(recipe.has("exp/checkpoints"));
  const auto both = recipe.train({"++trainer.enable_checkpointing=false",
                                  kCallbacks + "[{_target_: " + kLightning + "ModelCheckpoint}]"});
  EXPECT_EQ(both.exit_code, 2) << both.describe();
}

TEST(TrainSurface, WhatHasNoEffectIsRefusedWithAdvice) {
  const ToyRecipe recipe;
  for (const auto& [setting, advice] : std::map<std::string, std::string>{
           {"++trainer.inference_mode=false", "validation never records gradients"},
           {"++trainer.use_distributed_sampler=false", "always split over the ranks"},
           {"++trainer.profiler=simple", "metrics.jsonl"},
           {kCallbacks + "[{_target_: throughput, window_size: 3}]", "log_every_n_steps"},
           {kCallbacks + "[{_target_: learning_rate_monitor, logging_interval: epoch}]",
            "log_every_n_steps"},
           {kCallbacks + "[{_target_: " + kLightning + "LearningRateFinder}]", "yourself"}}) {
    const auto result = recipe.train({setting});
    EXPECT_EQ(result.exit_code, 2) << setting;
    EXPECT_THAT(result.err, HasSubstr(advice)) << setting;
  }
}

// Its line, the utterances, exit 3; not a bug of ours.
TEST(TrainSurface, AnErrorInTheModelIsTheUsers) {
  const ToyRecipe recipe(R"(
def forward(self, speech, speech_lengths, text, text_lengths):
    return (speech @ self.weight).mean()
)");
  const auto result = recipe.train();
  EXPECT_EQ(result.exit_code, 3) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("<--- HERE"));
  EXPECT_THAT(result.err, HasSubstr("the model's own code"));
  EXPECT_THAT(result.err, HasSubstr("utt"));
  EXPECT_THAT(result.err, Not(HasSubstr("bug")));
}

// A mistake that no line of the model shows.
TEST(TrainSurface, AnErrorWithoutALineSaysWhereToLook) {
  const ToyRecipe recipe(R"(
def forward(self, speech, speech_lengths, text, text_lengths):
    return self.weight * 1.0
)");
  const auto result = recipe.train();
  EXPECT_EQ(result.exit_code, 3) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("the model's own code"));
  EXPECT_THAT(result.err, Not(HasSubstr("the line above")));
}

// Weights are no checkpoint; the key for them is another.
TEST(TrainSurface, WeightsAsACheckpointAreToldTheirKey) {
  const ToyRecipe recipe;
  ASSERT_TRUE(recipe.train().ok());
  std::filesystem::path weights;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(recipe.path()))
    if (entry.path().filename() == "model.safetensors") weights = entry.path();
  ASSERT_FALSE(weights.empty());
  const auto result = recipe.train({"+fit.ckpt_path=" + weights.string(), "exp_dir=other"});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("init_param: [" + weights.string() + "]"));
}

// The same of a plugin's, when it is built and when it is used.
TEST(TrainSurface, AnErrorInAPluginsModelIsTheUsers) {
  const ToyRecipe recipe;
  std::string yaml = recipe.read("train.yaml");
  const auto model = yaml.find("model: {"), end = yaml.find('\n', model);
  yaml.replace(model, end - model,
               "model: {_target_: pull}\nplugins: [" + in_bin("libtutti_recipe_plugin.so") + "]");
  write_file_atomic(recipe.path() / "train.yaml", yaml);
  const auto built = recipe.train({"++model.fails=built"});
  EXPECT_EQ(built.exit_code, 3) << built.describe();
  EXPECT_THAT(built.err, HasSubstr("model pull: it could not be built: the table has no row 7"));
  const auto thrown = recipe.train({"++model.fails=thrown"});
  EXPECT_EQ(thrown.exit_code, 3) << thrown.describe();
  EXPECT_THAT(thrown.err, HasSubstr("model pull: it could not be built"));
  const auto used = recipe.train({"++model.fails=used"});
  EXPECT_EQ(used.exit_code, 3) << used.describe();
  EXPECT_THAT(used.err, HasSubstr("model pull: shape '[7]' is invalid"));
  EXPECT_THAT(used.err, HasSubstr("the model's own code"));
  EXPECT_TRUE(recipe.train().ok());
}

// `throw 5` in any part of a plugin: whose it was, and no bug of ours.
TEST(TrainSurface, WhateverAPluginThrowsIsToldWithItsName) {
  const ToyRecipe recipe;
  write_file_atomic(recipe.path() / "plugin.yaml",
                    "plugins: [" + in_bin("libtutti_recipe_plugin.so") + "]\n");
  std::string yaml = recipe.read("train.yaml");
  const auto model = yaml.find("model: {"), end = yaml.find('\n', model);
  yaml.replace(model, end - model, "model: {_target_: pull, fails: throws}");
  write_file_atomic(recipe.path() / "pull.yaml", yaml);
  const std::string threw = ": it threw int, which is no exception";
  const auto expect = [](const CommandResult& result, const std::string& words) {
    EXPECT_EQ(result.exit_code, 3) << words << result.describe();
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
  };
  const std::vector<std::string> words = {in_bin("tutti"), "train", "--config", "pull.yaml",
                                          "plugin.yaml"};
  for (const char* sanity : {"0", "1"}) {  // in a training step, in a validation
    auto all = words;
    all.push_back(std::string("++trainer.num_sanity_val_steps=") + sanity);
    expect(run_command({.argv = all, .cwd = recipe.path(), .timeout = std::chrono::minutes(3)}),
           "model pull" + threw);
  }
  expect(recipe.train({"plugin.yaml", kCallbacks + "[{_target_: throwing_callback}]"}),
         "callback throwing_callback" + threw);
  expect(recipe.train({"plugin.yaml", "++trainer.logger={_target_: throwing_logger}"}),
         "logger throwing_logger: it threw char const*");
  expect(
      recipe.train({"plugin.yaml", "++dataset.train.0.transform={_target_: throwing_transform}"}),
      ": transform throwing_transform" + threw);
}

TEST(TrainSurface, AnomaliesAreNamed) {
  const ToyRecipe recipe(R"(
def forward(self, speech, speech_lengths, text, text_lengths):
    return torch.sqrt(self.weight * 0.0).sum() + self.bias.sum()
)");
  const auto result =
      recipe.train({"++trainer.detect_anomaly=true", "++trainer.num_sanity_val_steps=0"});
  EXPECT_EQ(result.exit_code, 3) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("returned nan values"));
}

// Speaker ids and an embedding reach the model by their names.
TEST(TrainSurface, OtherFieldsOfTheBatchByConfig) {
  const ToyRecipe recipe(R"(
def forward(self, speech_lengths, spk, spk_lengths, xvector):
    n = speech_lengths.float().unsqueeze(1) / 10000.0
    y = n @ self.weight + self.bias
    loss = ((y - 1.0) ** 2).mean()
    stats = {"spk": spk.float().mean(), "spk_lengths": spk_lengths.float().mean(), "x": xvector.sum(1).mean()}
    return (loss, stats, torch.tensor(float(n.size(0))))
)");
  std::string ids, vectors;
  for (int i = 0; i < 24; ++i) {
    const std::string id = "utt" + std::to_string(i);
    ids += id + " 5\n";
    vectors += id + " 0.5 0.25 2\n";
  }
  write_file_atomic(recipe.path() / "data/utt2spk_id", ids);
  write_file_atomic(recipe.path() / "data/xvector", vectors);
  const std::string fields =
      "fields: {spk: {path: data/utt2spk_id, type: text_int}, "
      "xvector: {path: data/xvector, type: text_float}}}]\n";
  write_file_atomic(recipe.path() / "more.yaml",
                    "dataset:\n  train: [{name: train, data_src_args: {manifest: "
                    "data/train.jsonl}, " +
                        fields +
                        "  valid: [{name: valid, data_src_args: {manifest: data/valid.jsonl}, " +
                        fields + "model: {inputs: [speech_lengths, spk, spk_lengths, xvector]}\n");
  const auto result = recipe.train({"more.yaml"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(recipe.series("valid/spk"), testing::Each(5.0));
  EXPECT_THAT(recipe.series("valid/spk_lengths"), testing::Each(1.0));
  EXPECT_THAT(recipe.series("valid/x"), testing::Each(2.75));
  const auto wrong = recipe.train({"more.yaml", "model.inputs=[speech_lengths, spkr]"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("got 'spkr', but the batch has speech"));
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'spk'?"));
}

// 160 samples a frame: lengths are those of the frames. Utterances without a transcript leave the
// loss a number, and are named once in the words of the stage that looks for them.
TEST(TrainSurface, CtcOfAModelThatStrides) {
  const ToyRecipe recipe(R"(
def forward(self, speech, speech_lengths, text, text_lengths):
    frames = speech.size(1) // 160
    x = speech[:, : frames * 160].reshape(speech.size(0), frames, 160).mean(2, True)
    y = torch.cat([x @ self.weight + self.bias, x @ self.weight], 2)
    return torch.log_softmax(y, 2)
)");
  std::string train;
  for (const std::string& line : split(recipe.read("data/train.jsonl"), '\n')) {
    if (line.empty()) continue;
    Json utterance = parse_json(line, "train.jsonl");
    if (utterance["id"] == "utt3" || utterance["id"] == "utt5") utterance["text"] = "";
    train += utterance.dump() + "\n";
  }
  write_file_atomic(recipe.path() / "data/train.jsonl", train);
  // One in a batch: some have no label at all.
  const auto result = recipe.train({"model.loss=ctc", "dataloader.train.batch_size=1"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(recipe.series("train/loss"), testing::Each(testing::Ge(0.0)));
  EXPECT_EQ(recipe.series("train/loss").size(), 48U);
  EXPECT_GT(recipe.series("valid/loss").back(), 0);
  const std::string words = "empty_text: 2\n  utt3: no transcript\n  utt5: no transcript\n";
  const auto told = result.err.find("train: " + words);
  ASSERT_NE(told, std::string::npos) << result.describe();
  EXPECT_EQ(result.err.find("empty_text", told + words.size()), std::string::npos);
  const auto checked =
      run_command({.argv = {in_bin("tutti"), "validate_dataset", "--config", "train.yaml"},
                   .cwd = recipe.path(),
                   .timeout = std::chrono::minutes(3)});
  EXPECT_EQ(checked.exit_code, 3) << checked.describe();
  EXPECT_THAT(checked.err, HasSubstr(words));
}

// Its first passes must not be computed in another order than later ones: going on begins with first passes again.
TEST(TrainSurface, ATorchScriptModelGoesOnBitByBit) {
  const ToyRecipe recipe(R"(
def forward(self, speech, speech_lengths, text, text_lengths):
    taps = (self.busy[:, :2] + self.bias).unsqueeze(1) * self.weight
    h = torch.conv1d(speech.unsqueeze(1), taps, None, [80])
    h = torch.batch_norm(h, None, None, None, None, True, 0.1, 1.0e-5, False)
    z = torch.log_softmax(torch.relu(h).transpose(1, 2) @ self.busy + self.weight.sum(), 2)
    return (z * z).mean()
)");
  ASSERT_TRUE(recipe.train({"exp_dir=./once/", "trainer.max_epochs=2"}).ok());
  ASSERT_TRUE(recipe.train({"exp_dir=./twice/", "trainer.max_epochs=1"}).ok());
  ASSERT_TRUE(recipe.train({"exp_dir=./twice/", "trainer.max_epochs=2"}).ok());
  for (const char* file : {"model", "optimizer", "extra"}) {
    const std::string path = std::string("/checkpoints/step-00000008/") + file + ".safetensors";
    EXPECT_TRUE(recipe.read("once" + path) == recipe.read("twice" + path)) << file;
  }
}

TEST(TrainSurface, ValidateDatasetLooksAtEveryFileOfEverySetOfTheCommand) {
  const ToyRecipe recipe;
  // As decoding takes it: one set is new, and has no transcript.
  write_file_atomic(recipe.path() / "data/test.jsonl", R"({"id": "t1", "audio": "t1.wav"})"
                                                       "\n");
  fs::copy_file(recipe.path() / "data/utt3.wav", recipe.path() / "data/t1.wav");
  write_file_atomic(recipe.path() / "inference.yaml", R"(recipe_dir: .
exp_dir: ./exp/
dataset:
  test: [{name: mine, data_src_args: {manifest: data/test.jsonl}}]
model: {_target_: espnet2.bin.asr_inference.Speech2Text, asr_train_config: exp/config.yaml, asr_model_file: exp/valid.loss.best.pth}
)");
  const auto validate = [&] {
    return run_command(
        {.argv = {in_bin("tutti"), "run", "--stages", "validate_dataset", "--training_config",
                  "train.yaml", "--inference_config", "inference.yaml"},
         .cwd = recipe.path(),
         .timeout = std::chrono::minutes(3)});
  };
  const auto first = validate();
  ASSERT_TRUE(first.ok()) << first.describe();
  EXPECT_THAT(first.err, HasSubstr("no errors in train (16), valid (8), mine (1); see "));
  EXPECT_THAT(validate().err, HasSubstr("up to date, skipped"));
  for (const char* file : {"data/t1.wav", "data/utt5.wav"}) {
    fs::rename(recipe.path() / file, recipe.path() / "away");
    const auto without = validate();
    EXPECT_EQ(without.exit_code, 3) << without.describe();
    EXPECT_THAT(without.err, HasSubstr(fs::path(file).stem().string() + ": "));
    fs::rename(recipe.path() / "away", recipe.path() / file);
    EXPECT_TRUE(validate().ok());
  }
}

// The libraries of docs/extending.md.
TEST(TrainSurface, ThePluginsOfTheDocsTrain) {
  const ToyRecipe recipe;
  write_file_atomic(recipe.path() / "plugin.yaml",
                    "plugins: [" + in_bin("libtutti_docs_plugin_model.so") + ", " +
                        in_bin("libtutti_docs_plugin_parts.so") + R"(]
optimizer: {_target_: sign_sgd, lr: 0.01}
scheduler: {_target_: halving, every: 4}
trainer:
  callbacks: [{_target_: stop_below, loss: -1}]
  logger: {_target_: last_value, metric: valid/loss}
)");
  const std::string yaml = recipe.read("train.yaml");
  const auto model = yaml.find("model: {");
  write_file_atomic(recipe.path() / "train.yaml", yaml.substr(0, model) +
                                                      "model: {_target_: my_model, width: 8}\n" +
                                                      yaml.substr(yaml.find('\n', model) + 1));
  const auto result = recipe.train({"plugin.yaml"});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(recipe.series("optim0_lr0"), ElementsAre(0.01, 0.01, 0.01, 0.01, 0.005, 0.005, 0.005,
                                                       0.005, 0.0025, 0.0025, 0.0025, 0.0025));
  EXPECT_THAT(recipe.read("exp/valid.loss.txt"), testing::ContainsRegex("^[0-9.]+"));
  EXPECT_THAT(result.out + result.err, HasSubstr("hidden"));
}

// One utterance per batch, at half the level, until the callback has seen enough.
TEST(TrainSurface, ASamplerATransformAndACallbackOfAPluginAreCalled) {
  const ToyRecipe recipe(R"(
def forward(self, speech, speech_lengths, text, text_lengths):
    n = speech_lengths.float().unsqueeze(1) / 10000.0
    loss = ((n @ self.weight + self.bias - 1.0) ** 2).mean()
    return (loss, {"level": speech.max(), "utterances": speech_lengths.sum() * 0 + speech_lengths.size(0)}, torch.tensor(1.0))
)");
  std::string shapes;
  for (int i = 0; i < 16; ++i)
    shapes += "utt" + std::to_string(i) + " " + std::to_string(1600 + 160 * i) + "\n";
  write_file_atomic(recipe.path() / "shape", shapes);
  std::string yaml = recipe.read("train.yaml");
  const auto replace = [&yaml](const std::string& from, const std::string& to) {
    ASSERT_NE(yaml.find(from), std::string::npos) << from;
    yaml.replace(yaml.find(from), from.size(), to);
  };
  replace("train: {iter_factory: null, batch_size: 4, shuffle: true}",
          "train: {batches: {type: one_by_one, shape_files: [shape]}}");
  replace("{manifest: data/train.jsonl}}",
          "{manifest: data/train.jsonl}, transform: {_target_: gain, factor: 0.5}}");
  replace("logger: false}", "logger: false, callbacks: [{_target_: stop_below, loss: 1000}]}");
  write_file_atomic(recipe.path() / "train.yaml",
                    yaml + "plugins: [" + in_bin("libtutti_docs_plugin_parts.so") + "]\n");
  const auto result = recipe.train();
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_THAT(result.out + result.err, HasSubstr("good enough"));
  EXPECT_EQ(recipe.series("train/utterances"), std::vector<double>(16, 1.0));
  EXPECT_THAT(recipe.series("train/level"), testing::Each(testing::DoubleNear(0.05, 1e-3)));
  EXPECT_THAT(recipe.series("valid/level"), testing::Each(testing::DoubleNear(0.1, 1e-3)));
}

}  // namespace
}  // namespace tutti::systems
