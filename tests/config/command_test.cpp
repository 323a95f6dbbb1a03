// `tutti config` and `tutti doctor` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kHere = fs::path(in_source("tests/config"));

// UUIDs, because numbers would be compared with the GPUs of a machine that has some.
CommandResult run_tutti(std::vector<std::string> arguments,
                        const std::string& gpus = "GPU-0,GPU-1,GPU-2,GPU-3") {
  arguments.insert(arguments.begin(), in_bin("tutti"));
  return run_command({.argv = arguments,
                      .env = {{"CUDA_VISIBLE_DEVICES", gpus}},
                      .timeout = std::chrono::seconds(60)});
}

TEST(ConfigCommand, ChecksEveryBlockOfTheSeeds) {
  for (const auto& entry : fs::directory_iterator(kHere / "seeds")) {
    const CommandResult result = run_tutti({"config", "check", entry.path().string()});
    const bool is_mistake = entry.path().stem().string().starts_with("mistake");
    EXPECT_EQ(result.exit_code, is_mistake ? 2 : 0) << entry.path() << "\n" << result.err;
    if (is_mistake) {
      EXPECT_THAT(result.err, HasSubstr(entry.path().string() + ":")) << result.err;
    }
  }
}

TEST(ConfigCommand, ReportsAllMistakesInOrder) {
  const CommandResult result =
      run_tutti({"config", "check", (kHere / "ten_mistakes.yaml").string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  std::size_t at = 0;
  for (const char* part :
       {":3:1: sed:", ":5:13: optimizer._target_:", ":9:3: scheduler.warmup_step:",
        ":11:16: trainer.accelerator:", ":12:12: trainer.devices:", ":14:14: trainer.precision:",
        ":15:15: trainer.max_epochs:", ":16:13: trainer.profiler:", ":19:14: parallel.n_workers:",
        ":21:5: parallel.options.walltime:", ":24:19: dataloader.train.total_shards:",
        ":25:22: dataloader.train.dist_world_size:"}) {
    const std::size_t found = result.err.find(part, at);
    EXPECT_NE(found, std::string::npos) << part << " not in order in\n" << result.err;
    if (found != std::string::npos) at = found;
  }
  const auto first = result.err.find("total_shards: got");
  EXPECT_EQ(result.err.find("total_shards: got", first + 1), std::string::npos) << "told twice:\n"
                                                                                << result.err;
}

TEST(ConfigCommand, OptionsABackendDoesNotKnow) {
  const TempFolder folder;
  const fs::path file = folder.path() / "parallel_slurm.yaml";
  write_file_atomic(
      file,
      "parallel:\n  env: slurm\n  n_workers: 2\n  options: {cores: 1, memory: 1GB, quee: gpu}\n");
  const CommandResult result = run_tutti({"config", "check", file.string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr(":4:36: parallel.options.quee:"));
  EXPECT_THAT(result.err, HasSubstr("did you mean 'queue'?"));
}

TEST(ConfigCommand, EveryRecipeTakesItsParallelFiles) {
  int count = 0;
  for (const auto& recipe : fs::directory_iterator(fs::path(in_source("recipes")))) {
    const fs::path conf = recipe.path() / "conf";
    if (!fs::exists(conf / "inference.yaml")) continue;
    for (const auto& overlay : fs::directory_iterator(conf)) {
      if (!overlay.path().filename().string().starts_with("parallel_")) continue;
      const CommandResult result =
          run_tutti({"config", "check", "--no_files", (conf / "inference.yaml").string(),
                     overlay.path().string()},
                    "");  // as on a login node: how many GPUs there are is another question
      EXPECT_EQ(result.exit_code, 0) << result.describe() << result.err;
      ++count;
    }
  }
  EXPECT_GE(count, 15);
}

TEST(ConfigCommand, ABatchSizeInTheWrongPlaceIsShownItsOwn) {
  const std::string file = (fs::path(in_source("recipes/digits/conf/training.yaml"))).string();
  for (const char* place : {"dataloader.train.", "dataloader.train.iter_factory."}) {
    const CommandResult result =
        run_tutti({"config", "check", "--no_files", file, std::string(place) + "batch_size=8"});
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_THAT(result.err, HasSubstr("belongs to the batches: "));
    EXPECT_THAT(result.err, HasSubstr("batches.batch_size"));
  }
}

TEST(ConfigCommand, ModelsOfInferenceNamesSlipsAndDevices) {
  const TempFolder folder;
  const fs::path file = folder.path() / "inference.yaml";
  const auto check = [&](const std::string& model) {
    write_file_atomic(file, "model: {" + model + "}\n");
    return run_tutti({"config", "check", "--no_files", file.string()});
  };
  const CommandResult slips = check("asr_model_file: a.pth, bem_size: 2");
  EXPECT_EQ(slips.exit_code, 2);
  EXPECT_THAT(slips.err, HasSubstr("key '_target_' is missing"));
  EXPECT_THAT(slips.err, HasSubstr("did you mean 'beam_size'?"));
  EXPECT_THAT(check("path: a.pt, weights: b.pth").err, HasSubstr("1 problem\n"));
  for (const char* name : {"asr, asr_model_file: a.pth", "torchscript, path: a.pt"}) {
    const std::string model = std::string("_target_: ") + name;
    EXPECT_EQ(check(model + ", device: cuda:1").exit_code, 0);
    for (const char* device : {"gpu0", "cuda:", "cuda:x"}) {
      const CommandResult refused = check(model + ", device: '" + device + "'");
      EXPECT_EQ(refused.exit_code, 2) << device;
      EXPECT_THAT(refused.err, HasSubstr("expected auto, cpu, cuda or cuda:N"));
    }
  }
}

TEST(ConfigCommand, MoreWorkersThanGpus) {
  const fs::path file = kHere / "seeds/multi_gpu_2_local_gpu.yaml";
  EXPECT_EQ(run_tutti({"config", "check", file.string()}).exit_code, 0);
  const CommandResult result = run_tutti({"config", "check", file.string()}, "GPU-0,GPU-1");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("got 4, expected at most the number of visible GPUs = 2"));
  // A login node has none: that is no mistake of the file.
  const CommandResult none = run_tutti({"config", "check", file.string()}, "");
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_THAT(none.err, HasSubstr("no GPU is visible on this machine"));
}

TEST(ConfigCommand, AGpuThatIsAskedForAndNotThere) {
  const TempFolder folder;
  const fs::path file = folder.path() / "training.yaml";
  write_file_atomic(file, "exp_dir: exp\ntrainer: {accelerator: gpu}\n");
  const std::string warning = "trainer.accelerator: got gpu, and no GPU is visible on this machine";
  const CommandResult none = run_tutti({"config", "check", file.string()}, "");
  EXPECT_EQ(none.exit_code, 0) << none.describe();
  EXPECT_THAT(none.err, HasSubstr(warning));
  EXPECT_THAT(run_tutti({"config", "check", file.string()}).err,
              ::testing::Not(HasSubstr(warning)));
}

TEST(ConfigCommand, MoreRanksThanGpus) {
  const TempFolder folder;
  const fs::path file = folder.path() / "training.yaml";
  write_file_atomic(file, "exp_dir: exp\nnum_device: 4\ntrainer: {accelerator: gpu}\n");
  const auto check = [&](const std::string& gpus, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"config", "check", file.string()});
    return run_tutti(overrides, gpus);
  };
  const CommandResult few = check("GPU-0,GPU-1", {});
  EXPECT_EQ(few.exit_code, 0) << few.describe();
  EXPECT_THAT(few.err, HasSubstr("num_device: got 4, and 2 GPU(s) are visible on this machine\n"
                                 "  fix: check it where it will run, or set num_device: 2"));
  EXPECT_THAT(check("GPU-0,GPU-1", {"trainer.devices=3"}).err, HasSubstr("trainer.devices: got 3"));
  EXPECT_EQ(check("GPU-0,GPU-1,GPU-2,GPU-3", {}).err, "");
  EXPECT_EQ(check("GPU-0,GPU-1", {"trainer.accelerator=cpu"}).err, "");
}

TEST(ConfigCommand, ShowsTheResolvedConfig) {
  const fs::path file = kHere / "seeds/multi_gpu_1_training.yaml";
  const CommandResult yaml = run_tutti({"config", "show", file.string(), "num_device=2"});
  EXPECT_EQ(yaml.exit_code, 0) << yaml.err;
  EXPECT_THAT(yaml.out, HasSubstr("  devices: 2\n"));
  const CommandResult json = run_tutti(
      {"config", "show", file.string(), "+seed=7", "~num_nodes", "trainer.num_nodes=3", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const Json parsed = parse_json(json.out, "show");
  EXPECT_EQ(parsed["trainer"]["num_nodes"], 3);
  EXPECT_EQ(parsed["seed"], 7);
  EXPECT_EQ(run_tutti({"config", "show", file.string(), "num_devise=2"}).exit_code, 2);
}

// A default of four utterances beside the budget of a file would decide without a word.
TEST(ConfigCommand, TheOneLimitOfABatchThatAFileGivesIsItsOnlyOne) {
  const std::string file = (kHere / "seeds/multi_gpu_1_training.yaml").string();
  const auto batches = [&](const std::string& limit, const std::string& part) {
    const CommandResult shown =
        run_tutti({"config", "show", file, "dataloader.train.iter_factory.batches." + limit,
                   "dataloader.train.iter_factory.batches.type=bucketed", "--json"});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    return parse_json(shown.out, "show")["dataloader"][part]["iter_factory"]["batches"];
  };
  for (const char* part : {"train", "valid"}) {
    SCOPED_TRACE(part);
    const Json by_bins = batches("batch_bins=100000", part);
    EXPECT_EQ(by_bins["batch_bins"], 100000);
    EXPECT_EQ(by_bins.value("batch_size", Json()), Json()) << by_bins;
    const Json by_size = batches("batch_size=64", part);
    EXPECT_EQ(by_size["batch_size"], 64);
    EXPECT_EQ(by_size.value("batch_bins", Json()), Json()) << by_size;
  }
}

TEST(ConfigCommand, OverlaysMerge) {
  const CommandResult result =
      run_tutti({"config", "show", (kHere / "seeds/parallel_config_2_local.yaml").string(),
                 (kHere / "seeds/parallel_config_4_slurm.yaml").string(), "--json"});
  EXPECT_EQ(parse_json(result.out, "show")["parallel"]["env"], "slurm");
}

TEST(ConfigCommand, QuietAndMissingFiles) {
  EXPECT_EQ(run_tutti({"config", "check", "--quiet",
                       (kHere / "seeds/multi_gpu_1_training.yaml").string()})
                .out,
            "");
  const CommandResult missing = run_tutti({"config", "check", "no_such.yaml"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no_such.yaml"));
}

TEST(Doctor, AlwaysAnswers) {
  const CommandResult result = run_tutti({"doctor", "--json"}, "0,1");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json report = parse_json(result.out, "doctor");
  EXPECT_EQ(report["gpus"]["visible"], 2);
  EXPECT_TRUE(report["envs"]["local"]["usable"].get<bool>());
  EXPECT_GT(report["machine"]["memory_bytes"].get<std::uint64_t>(), 0U);
  const CommandResult text = run_tutti({"doctor"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("\nbf16 "));
}

// A limit that the user set for oneDNN is shown as it stands.
TEST(Doctor, SaysHowBf16IsMultipliedHere) {
  const Json amx = parse_json(run_tutti({"doctor", "--json"}).out, "doctor")["machine"]["amx"];
  EXPECT_TRUE(amx["shown"].is_boolean() && amx["fault"].is_string());
  const CommandResult limited =
      run_command({.argv = {in_bin("tutti"), "doctor"}, .env = {{"DNNL_MAX_CPU_ISA", "AVX2"}}});
  EXPECT_THAT(limited.out, HasSubstr("no faster than precision: 32"));
  EXPECT_THAT(limited.out, HasSubstr("DNNL_MAX_CPU_ISA=AVX2 is set"));
}

}  // namespace
}  // namespace tutti
