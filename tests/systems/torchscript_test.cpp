// recipes/torchscript: a model scripted in Python, trained and run here; no C++ of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/places.h"
#include "tests/systems/recipe_folder.h"
#include "tutti/core/json.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kRate = 8000;

// Words that are tones: "low", "mid", "high", with noise and of different lengths.
void write_tones(const fs::path& folder, const std::string& split_name, int count) {
  static const std::vector<std::pair<std::string, double>> kWords = {
      {"low", 300}, {"mid", 800}, {"high", 2000}};
  std::string lines;
  Random random({hash64(split_name)});
  for (int i = 0; i < count; ++i) {
    const auto& [word, hertz] = kWords[random.below(3)];
    data::Audio audio{.samples = {}, .sample_rate = kRate};
    const double pitch = hertz * random.uniform(0.8, 1.25);
    for (std::uint64_t n = 0, end = 2000 + random.below(3000); n < end; ++n)
      audio.samples.push_back(static_cast<float>(
          0.3 * std::sin(2 * std::numbers::pi * pitch * static_cast<double>(n) / kRate) +
          random.uniform(-0.05, 0.05)));
    const std::string id = split_name + std::to_string(i);
    data::write_wav(folder / (id + ".wav"), audio);
    lines += Json{{"id", id}, {"audio", id + ".wav"}, {"text", word}}.dump() + "\n";
  }
  write_file_atomic(folder / (split_name + ".jsonl"), lines);
}

TEST(TorchScript, AModelFromPythonTrainsAndDecodes) {
  const auto python = run_command({.argv = {TUTTI_PYTHON, "-c", "import torch"}});
  if (!python.ok()) GTEST_SKIP() << TUTTI_PYTHON " has no torch";
  const RecipeFolder recipe("torchscript");
  // The recipe reads ../fsdd/data.
  const fs::path data = recipe.path().parent_path() / "fsdd" / "data";
  fs::create_directories(data);
  write_tones(data, "train", 60);
  write_tones(data, "valid", 12);
  write_tones(data, "test", 30);
  const auto made = recipe.run({"train_tokenizer", "--config", recipe.conf("training.yaml")});
  ASSERT_TRUE(made.ok()) << made.describe();
  const auto vocab = split(trim(recipe.read("data/tokens/tokens.txt")), '\n').size();
  const auto exported = run_command(
      {.argv = {TUTTI_PYTHON, in_source("recipes/torchscript/export.py"),
                (recipe.path() / "model.pt").string(), "--vocab", std::to_string(vocab)}});
  ASSERT_TRUE(exported.ok()) << exported.describe();

  const auto trained = recipe.run(
      {"run", "--stages", "collect_stats", "train", "infer", "measure", "--training_config",
       recipe.conf("training.yaml"), "--inference_config", recipe.conf("inference.yaml"),
       "--metrics_config", recipe.conf("metrics.yaml"), "trainer.max_epochs=12",
       "dataloader.train.iter_factory.batches.batch_size=8", "scheduler.warmup_steps=10"});
  ASSERT_TRUE(trained.ok()) << trained.describe();
  const Json metrics =
      parse_json(recipe.read("exp/training/inference/metrics.json"), "metrics.json");
  EXPECT_LT(metrics["espnet3.systems.asr.metrics.wer.WER"]["test"]["WER"].get<double>(), 15.0);
  EXPECT_EQ(split(trim(recipe.read("exp/training/inference/test/score.scp")), '\n').size(), 30U);

  // The same file with the weights it came with, on another number of workers, raw scores as npy.
  write_file_atomic(recipe.path() / "conf/raw.yaml",
                    "model: {decode: none, outputs: [scores], weights: \"\"}\n"
                    "output_keys: [scores]\n"
                    "output_artifacts: {scores: {type: npy}}\n"
                    "parallel: {n_workers: 1}\n");
  const auto raw =
      recipe.run({"infer", "--config", recipe.conf("inference.yaml"), recipe.conf("raw.yaml"),
                  "inference_dir=" + (recipe.path() / "raw").string()});
  ASSERT_TRUE(raw.ok()) << raw.describe();
  EXPECT_TRUE(recipe.has("raw/test/scores/test7.npy"));
  EXPECT_THAT(recipe.read("raw/test/scores.scp"), HasSubstr("test7.npy"));
}

}  // namespace
}  // namespace tutti::systems
