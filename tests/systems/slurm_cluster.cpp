// A recipe under a real Slurm: two nodes give the weights of two local ranks, also when the job is
// requeued in the middle; decoding by submitted workers writes the bytes that local workers write.
// Needs SLURM_CONF (or a system Slurm; tests/beds/slurm makes one) with two idle nodes; skips with
// the reason otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/beds/slurm_nodes.h"
#include "tests/systems/recipe_folder.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kExp = "exp/training_asr_transformer/";
constexpr const char* kWeights =
    "exp/training_asr_transformer/checkpoints/valid.loss.ave_10best.safetensors";

class SlurmRecipe : public testing::Test {
 protected:
  void SetUp() override {
    if (shared_archive("mini_an4.tar.gz").empty())
      GTEST_SKIP() << "../shared/data/mini_an4.tar.gz is not here";
    if (const std::string why = why_no_slurm(2); !why.empty()) GTEST_SKIP() << why;
  }
  static std::vector<std::string> stages(const RecipeFolder& recipe, const std::string& names,
                                         const std::vector<std::string>& overrides) {
    std::vector<std::string> words = {"run", "--stages"};
    for (const auto& name : split_words(names)) words.push_back(name);
    words.insert(words.end(), {"--training_config", recipe.conf("training_asr_transformer.yaml"),
                               "--inference_config", recipe.conf("inference.yaml"),
                               "create_dataset.source=" + shared_archive("mini_an4.tar.gz"),
                               "trainer.max_epochs=40", "trainer.accelerator=cpu"});
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }
  static constexpr const char* kTraining = "create_dataset train_tokenizer collect_stats train";

  // What two ranks of this machine make of it.
  static std::string local_weights(const RecipeFolder& recipe) {
    const auto result = recipe.run(stages(recipe, kTraining, {"num_device=2"}));
    EXPECT_TRUE(result.ok()) << result.describe();
    return recipe.read(kWeights);
  }
};

TEST_F(SlurmRecipe, TwoNodesGiveTheWeightsOfTwoLocalRanks) {
  const RecipeFolder local("mini_an4");
  const std::string expected = local_weights(local);
  const RecipeFolder recipe("mini_an4");
  std::vector<std::string> argv = {"srun", "-N2", "-n2", "--ntasks-per-node=1",
                                   TUTTI_BIN_DIR "/tutti"};
  for (const auto& word : stages(recipe, kTraining, {"num_device=1", "num_nodes=2"}))
    argv.push_back(word);
  const auto result = run_command({.argv = argv, .cwd = recipe.path(), .timeout = 5min});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(recipe.read(kWeights), expected);
}

TEST_F(SlurmRecipe, ARequeuedJobEndsWithTheSameWeights) {
  const RecipeFolder local("mini_an4");
  const std::string expected = local_weights(local);
  const RecipeFolder recipe("mini_an4");
  std::string script = "#!/bin/bash\nexec srun -n2 --ntasks-per-node=1 " TUTTI_BIN_DIR "/tutti";
  for (const auto& word : stages(recipe, kTraining, {"num_device=1", "num_nodes=2"}))
    script += " '" + word + "'";
  write_file_atomic(recipe.path() / "job.sh", script + "\n", 0755);
  const auto submitted = run_command(
      {.argv = {"sbatch", "--parsable", "-N2", "-n2", "--requeue", "--open-mode=append", "-o",
                (recipe.path() / "job.out").string(), (recipe.path() / "job.sh").string()},
       .cwd = recipe.path()});
  ASSERT_TRUE(submitted.ok()) << submitted.describe();
  const std::string job(trim(submitted.out));
  const auto deadline = std::chrono::steady_clock::now() + 4min;
  bool requeued = false;
  while (!recipe.has(kWeights) && std::chrono::steady_clock::now() < deadline) {
    if (!requeued && recipe.has(std::string(kExp) + "checkpoints/step-00000005"))
      requeued = run_command({.argv = {"scontrol", "requeue", job}}).ok();
    std::this_thread::yield();
  }
  ASSERT_TRUE(requeued) << read_file(recipe.path() / "job.out");
  ASSERT_TRUE(recipe.has(kWeights)) << read_file(recipe.path() / "job.out");
  EXPECT_EQ(recipe.read(kWeights), expected);
}

TEST_F(SlurmRecipe, SubmittedWorkersWriteTheBytesOfLocalOnes) {
  const RecipeFolder recipe("mini_an4");
  const auto local = recipe.run(stages(recipe, std::string(kTraining) + " infer", {}));
  ASSERT_TRUE(local.ok()) << local.describe();
  write_file_atomic(recipe.path() / "conf/slurm.yaml",
                    "parallel:\n  env: slurm\n  n_workers: 2\n  options: {cores: 1, processes: 1, "
                    "memory: 500MB, walltime: \"00:10:00\"}\n");
  auto words = stages(recipe, "infer", {"inference_dir=" + (recipe.path() / "there").string()});
  for (auto at = words.begin(); at != words.end(); ++at)
    if (*at == recipe.conf("inference.yaml")) {
      words.insert(at + 1, recipe.conf("slurm.yaml"));
      break;
    }
  const auto there = recipe.run(words);
  ASSERT_TRUE(there.ok()) << there.describe();
  for (const char* file : {"valid/results.jsonl", "test/results.jsonl", "test/hyp.scp"})
    EXPECT_EQ(recipe.read(std::string("there/") + file),
              recipe.read(std::string(kExp) + "inference/" + file));
}

}  // namespace
}  // namespace tutti::systems
