// The tables of docs/trainer.md for Lightning users, row by row through `tutti config check`: what
// they say works is accepted, what they say is refused is refused with advice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct Row {
  std::vector<std::string> names;
  std::string here;
};

// The rows under "| HEADING | here |".
std::vector<Row> table(const std::string& heading) {
  const std::string page = read_file(fs::path(in_source("docs/trainer.md")));
  const std::size_t start = page.find("| " + heading + " | here |");
  EXPECT_NE(start, std::string::npos) << heading;
  std::vector<Row> rows;
  const auto lines = split(page.substr(start), '\n');
  for (std::size_t i = 2; i < lines.size() && lines[i].starts_with("| "); ++i) {
    const std::size_t bar = lines[i].find(" | ", 2);
    Row row{{}, lines[i].substr(bar + 3)};
    for (const std::string& part : split(lines[i].substr(2, bar - 2), ',')) {
      std::string name(trim(part));
      if (const auto note = name.find(" ("); note != std::string::npos) name.resize(note);
      std::erase(name, '`');
      row.names.push_back(name);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

struct Values {
  std::vector<std::string> accepted, refused;
};

CommandResult check(const std::string& trainer) {
  const TempFolder folder;
  const fs::path file = folder.path() / "training.yaml";
  write_file_atomic(
      file, "optimizer: {_target_: torch.optim.Adam, lr: 0.001}\ntrainer: " + trainer + "\n");
  return run_command({.argv = {in_bin("tutti"), "config", "check", file.string()},
                      .env = {{"CUDA_VISIBLE_DEVICES", "GPU-0,GPU-1"}},
                      .timeout = std::chrono::seconds(60)});
}

// Every name of the table has values here and the other way round; rows that speak of refusals have
// one, and all others something that works.
void walk(
    const std::string& heading, const std::map<std::string, Values>& all,
    const std::function<std::string(const std::string& name, const std::string& value)>& yaml) {
  std::set<std::string> seen;
  for (const Row& row : table(heading))
    for (const std::string& name : row.names) {
      if (name == "your own") continue;
      SCOPED_TRACE(name);
      const auto found = all.find(name);
      ASSERT_NE(found, all.end()) << "the table has it, this test does not";
      seen.insert(name);
      const bool refuses = row.here.find("refused") != std::string::npos;
      EXPECT_TRUE(refuses || found->second.refused.empty()) << "the table says: " << row.here;
      EXPECT_FALSE(row.here.starts_with("refused") && found->second.refused.empty()) << row.here;
      EXPECT_FALSE(found->second.accepted.empty() && found->second.refused.empty());
      for (const std::string& value : found->second.accepted) {
        const auto result = check(yaml(name, value));
        EXPECT_EQ(result.exit_code, 0) << value << "\n" << result.err;
      }
      for (const std::string& value : found->second.refused) {
        const auto result = check(yaml(name, value));
        EXPECT_EQ(result.exit_code, 2) << value << "\n" << result.err;
        EXPECT_THAT(result.err, AnyOf(HasSubstr("fix: "), HasSubstr(", expected "))) << value;
      }
    }
  for (const auto& [name, values] : all) EXPECT_TRUE(seen.count(name)) << name << ": no row";
}

TEST(LightningTable, ArgumentsOfTheTrainer) {
  const std::map<std::string, Values> all = {
      {"accelerator", {{"auto", "cpu", "gpu", "cuda"}, {}}},
      {"strategy",
       {{"auto", "single_device", "ddp", "ddp_find_unused_parameters_true", "fsdp",
         "fsdp_cpu_offload", "{_target_: lightning.pytorch.strategies.DDPStrategy}"},
        {"ddp_spawn", "deepspeed_stage_2"}}},
      {"devices", {{"auto", "1", "-1"}, {}}},
      {"num_nodes", {{"2"}, {}}},
      {"precision",
       {{"32-true", "16-mixed", "bf16-mixed", "bf16-true", "64-true"}, {"transformer-engine"}}},
      {"logger", {{"true", "false"}, {}}},
      {"callbacks", {{"[]"}, {}}},
      {"fast_dev_run", {{"true", "2"}, {}}},
      {"max_epochs", {{"3", "-1"}, {}}},
      {"min_epochs", {{"1"}, {}}},
      {"max_steps", {{"100"}, {}}},
      {"min_steps", {{"10"}, {}}},
      {"max_time", {{"\"00:12:00:00\"", "{hours: 2}"}, {}}},
      {"limit_train_batches", {{"0.5", "10"}, {}}},
      {"limit_val_batches", {{"0.5", "10"}, {}}},
      {"overfit_batches", {{"4"}, {}}},
      {"limit_test_batches", {{"1.0"}, {"10"}}},
      {"limit_predict_batches", {{"1.0"}, {"10"}}},
      {"val_check_interval", {{"0.25", "500"}, {"\"00:00:10:00\""}}},
      {"check_val_every_n_epoch", {{"2"}, {}}},
      {"num_sanity_val_steps", {{"0", "-1"}, {}}},
      {"log_every_n_steps", {{"10"}, {}}},
      {"enable_checkpointing", {{"false"}, {}}},
      {"enable_progress_bar", {{"false"}, {}}},
      {"enable_model_summary", {{"false"}, {}}},
      {"accumulate_grad_batches", {{"4", "{0: 8, 4: 2}"}, {}}},
      {"gradient_clip_val", {{"1.0"}, {}}},
      {"gradient_clip_algorithm", {{"norm", "value"}, {}}},
      {"deterministic", {{"true", "warn"}, {}}},
      {"detect_anomaly", {{"true"}, {}}},
      {"benchmark", {{"false"}, {"true"}}},
      {"inference_mode", {{"true"}, {"false"}}},
      {"use_distributed_sampler", {{"true"}, {"false"}}},
      {"profiler", {{"pytorch"}, {"simple", "advanced"}}},
      {"sync_batchnorm", {{"true", "false"}, {}}},
      {"barebones", {{"false"}, {"true"}}},
      {"plugins", {{"[]"}, {"[a]"}}},
      {"reload_dataloaders_every_n_epochs", {{"0"}, {"3"}}},
      {"model_registry", {{"null"}, {"name"}}},
      {"default_root_dir", {{"exp"}, {}}},
      {"enable_autolog_hparams", {{"true", "false"}, {}}},
      {"suggest_integrations", {{"true", "false"}, {}}}};
  EXPECT_EQ(all.size(), 42U);
  walk("argument of Trainer", all, [](const std::string& name, const std::string& value) {
    return "{" + name + ": " + value + "}";
  });
}

// A value here: the keys beside _target_.
std::string node(const std::string& place, const std::string& name, const std::string& keys) {
  return "{_target_: lightning.pytorch." + place + "." + name + (keys.empty() ? "" : ", " + keys) +
         "}";
}

TEST(LightningTable, Callbacks) {
  const Values works{{""}, {}}, not_here{{}, {""}};
  walk("callback",
       {{"ModelCheckpoint",
         {{"monitor: valid/loss, mode: min, save_top_k: 3", "every_n_train_steps: 100",
           "every_n_epochs: 2", "dirpath: exp", "train_time_interval: \"00:30:00\""},
          {}}},
        {"EarlyStopping", {{"monitor: valid/loss"}, {}}},
        {"EMAWeightAveraging", {{"decay: 0.99"}, {}}},
        {"StochasticWeightAveraging", {{"swa_lrs: 0.01"}, {}}},
        {"LearningRateMonitor", works},
        {"ThroughputMonitor", works},
        {"DeviceStatsMonitor", works},
        {"GradientAccumulationScheduler", {{"scheduling: {0: 4, 2: 1}"}, {}}},
        {"Timer", {{"duration: \"00:12:00:00\""}, {}}},
        {"TQDMProgressBar", not_here},
        {"RichProgressBar", not_here},
        {"ProgressBar", not_here},
        {"ModelSummary", not_here},
        {"RichModelSummary", not_here},
        {"BatchSizeFinder", not_here},
        {"LearningRateFinder", not_here},
        {"BaseFinetuning", not_here},
        {"BackboneFinetuning", not_here},
        {"ModelPruning", not_here},
        {"LambdaCallback", not_here},
        {"OnExceptionCheckpoint", not_here},
        {"WeightAveraging", not_here},
        {"SpikeDetection", not_here},
        {"BasePredictionWriter", not_here}},
       [](const std::string& name, const std::string& keys) {
         return "{max_epochs: 5, callbacks: [" + node("callbacks", name, keys) + "]}";
       });
}

TEST(LightningTable, Loggers) {
  const Values works{{"save_dir: logs"}, {}}, not_here{{}, {""}};
  walk("logger",
       {{"TensorBoardLogger", works},
        {"CSVLogger", works},
        {"MLFlowLogger", {{"experiment_name: a"}, {}}},
        {"WandbLogger", not_here},
        {"NeptuneLogger", not_here},
        {"CometLogger", not_here}},
       [](const std::string& name, const std::string& keys) {
         return "{logger: " + node("loggers", name, keys) + "}";
       });
}

}  // namespace
}  // namespace tutti
