// A recipe under a real Slurm: two nodes give the weights of two local ranks, also when the job is
// requeued in the middle; decoding writes the same bytes on every backend, with and without a
// driver. Needs SLURM_CONF (or a system Slurm; tests/beds/slurm makes one) with two idle nodes;
// skips with the reason otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "tests/beds/slurm_nodes.h"
#include "tests/places.h"
#include "tests/systems/recipe_folder.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kExp = "exp/training/";
constexpr const char* kWeights = "exp/training/checkpoints/valid.loss.ave_3best.safetensors";
constexpr const char* kTraining = "create_dataset train_tokenizer collect_stats train";
const std::vector<std::string> kDecoded = {"test_voices/results.jsonl", "test_voices/hyp.scp",
                                           "test_voices/ref.scp",       "test_texts/results.jsonl",
                                           "test_texts/hyp.scp",        "test_texts/ref.scp"};

// The digits recipe, cut down to seconds.
std::vector<std::string> stages(const RecipeFolder& recipe, const std::string& names,
                                const std::vector<std::string>& more) {
  std::vector<std::string> words = {"run", "--stages"};
  for (const auto& name : split_words(names)) words.push_back(name);
  words.insert(
      words.end(),
      {"--training_config", recipe.conf("training.yaml"), "--inference_config",
       recipe.conf("inference.yaml"), "create_dataset.num_train=60", "create_dataset.num_valid=8",
       "create_dataset.num_test=24", "trainer.max_epochs=6", "model.encoder_conf.num_blocks=1"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A config with another parallel block.
std::string replace_block(const std::string& yaml, const std::string& block) {
  return yaml.substr(0, yaml.find("\nparallel:")) + "\nparallel: " + block + "\n";
}

// What two ranks of this machine make of it; once for all tests.
const std::string& local_weights() {
  static const std::string weights = [] {
    const RecipeFolder recipe("digits");
    const auto result = recipe.run(stages(recipe, kTraining, {"num_device=2"}));
    EXPECT_TRUE(result.ok()) << result.describe();
    return recipe.read(kWeights);
  }();
  return weights;
}

class SlurmRecipe : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_slurm(2); !why.empty()) GTEST_SKIP() << why;
    // Threads decide the order of sums, and a node has more cores than a local rank has.
    setenv("OMP_NUM_THREADS", "1", 1);
  }
};

TEST_F(SlurmRecipe, TwoNodesGiveTheWeightsOfTwoLocalRanks) {
  const RecipeFolder recipe("digits");
  std::vector<std::string> argv = {"srun", "-N2", "-n2", "--ntasks-per-node=1", in_bin("tutti")};
  for (const auto& word : stages(recipe, kTraining, {"num_device=1", "num_nodes=2"}))
    argv.push_back(word);
  const auto result = run_command({.argv = argv, .cwd = recipe.path(), .timeout = 20min});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(recipe.read(kWeights), local_weights());
}

TEST_F(SlurmRecipe, ARequeuedJobEndsWithTheSameWeights) {
  const RecipeFolder recipe("digits");
  std::string script = "#!/bin/bash\nexec srun -n2 --ntasks-per-node=1 " + in_bin("tutti");
  for (const auto& word :
       stages(recipe, kTraining, {"num_device=1", "num_nodes=2", "trainer.log_every_n_steps=1"}))
    script += " '" + word + "'";
  write_file_atomic(recipe.path() / "job.sh", script + "\n", 0755);
  const auto submitted = run_command(
      {.argv = {"sbatch", "--parsable", "-N2", "-n2", "--requeue", "--open-mode=append", "-o",
                (recipe.path() / "job.out").string(), (recipe.path() / "job.sh").string()},
       .cwd = recipe.path()});
  ASSERT_TRUE(submitted.ok()) << submitted.describe();
  const std::string job(trim(submitted.out));
  const auto has_checkpoint = [&] {
    std::error_code none;  // not there yet
    for (const auto& entry : fs::directory_iterator(recipe.path() / kExp / "checkpoints", none))
      if (entry.path().filename().string().starts_with("step-")) return true;
    return false;
  };
  const auto deadline = std::chrono::steady_clock::now() + 20min;
  bool requeued = false;
  auto soonest = deadline;  // sooner, the nodes refuse it: credential revoked
  while (!recipe.has(kWeights) && std::chrono::steady_clock::now() < deadline) {
    if (!requeued && has_checkpoint()) {
      requeued = run_command({.argv = {"scontrol", "requeue", job}}).ok();
      soonest = std::chrono::steady_clock::now() + 3s;
    } else if (std::chrono::steady_clock::now() > soonest) {
      // Slurm lets it wait two minutes; we do not
      run_command({.argv = {"scontrol", "update", "jobid=" + job, "StartTime=now"}});
    }
    std::this_thread::sleep_for(50ms);  // between two looks
  }
  ASSERT_TRUE(requeued) << read_file(recipe.path() / "job.out");
  ASSERT_TRUE(recipe.has(kWeights)) << read_file(recipe.path() / "job.out");
  EXPECT_EQ(recipe.read(kWeights), local_weights());
}

// Three hosts to log in to for the length of a test (tests/beds/ssh).
class SshBed {
 public:
  SshBed() : up_(run("up.sh")) {}
  ~SshBed() { EXPECT_TRUE(run("down.sh").ok()); }
  const CommandResult& up() const { return up_; }
  std::string block() const {
    return "{env: ssh, n_workers: 3, interface: tutbr0, options: {hosts: [h1, h2, h3], "
           "connect_options: {config: " +
           (bed_ / "ssh_config").string() + "}}}";
  }

 private:
  CommandResult run(const char* script) const {
    return run_command({.argv = {std::string(in_source("tests/beds/ssh/")) + script},
                        .env = {{"BED", bed_.string()}},
                        .timeout = 2min});
  }
  const fs::path bed_ =
      fs::temp_directory_path() / ("tutti-bed-ssh-recipe-" + std::to_string(::getpid()));
  const CommandResult up_;
};

TEST_F(SlurmRecipe, DecodingWritesTheSameBytesOnEveryBackend) {
  const SshBed ssh;
  if (ssh.up().exit_code == 77) GTEST_SKIP() << ssh.up().out;
  ASSERT_TRUE(ssh.up().ok()) << ssh.up().describe();
  const RecipeFolder recipe("digits");
  const auto local = recipe.run(stages(recipe, std::string(kTraining) + " infer", {}));
  ASSERT_TRUE(local.ok()) << local.describe();
  const std::string slurm =
      "{env: slurm, n_workers: 2, options: {cores: 1, processes: 1, memory: 500MB, walltime: 10m}";
  const std::vector<std::pair<std::string, std::string>> others = {
      {"slurm", slurm + "}"},
      {"slurm_async", slurm + ", async: true}"},
      {"local_async", "{env: local, n_workers: 2, async: true}"},
      {"ssh", ssh.block()},
      {"local_gpu",
       "{env: local_gpu, n_workers: 2, options: {CUDA_VISIBLE_DEVICES: [GPU-a, GPU-b]}}"}};
  for (const auto& [name, block] : others) {
    // The recipe's own block is replaced, not merged over: each backend has options of its own.
    write_file_atomic(recipe.conf(name + ".yaml"),
                      replace_block(recipe.read("conf/inference.yaml"), block));
    auto words = stages(recipe, "infer", {"inference_dir=" + (recipe.path() / name).string()});
    std::replace(words.begin(), words.end(), recipe.conf("inference.yaml"),
                 recipe.conf(name + ".yaml"));
    const auto there = recipe.run(words);
    ASSERT_TRUE(there.ok()) << name << ": " << there.describe();
    for (const char* set : {"test_voices", "test_texts"}) {
      const auto waited = recipe.run({"wait", (recipe.path() / name / set).string()});
      EXPECT_EQ(waited.exit_code, 0) << name << waited.out << waited.err;
    }
    for (const std::string& file : kDecoded)
      EXPECT_EQ(recipe.read(name + "/" + file), recipe.read(kExp + ("inference/" + file)))
          << name << " " << file;
  }
}

}  // namespace
}  // namespace tutti::systems
