// What the programs write hangs on no kernel of a BLAS, no instruction set, no number of workers: the same bytes under settings that
// change the last digits of every product.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/places.h"
#include "tests/systems/recipe_folder.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

struct Setting {
  std::string name;
  std::map<std::string, std::string> env;
  std::string workers;
};

// Only kernels that this processor can run: another ends a program with SIGILL.
std::vector<Setting> settings() {
  const std::string cpu = read_file("/proc/cpuinfo");
  const auto has = [&](const char* flag) { return cpu.find(flag) != std::string::npos; };
  std::vector<Setting> out = {
      {"prescott_sse41", {{"OPENBLAS_CORETYPE", "Prescott"}, {"DNNL_MAX_CPU_ISA", "SSE41"}}, "1"}};
  if (has(" avx "))
    out.push_back({"sandybridge_avx",
                   {{"OPENBLAS_CORETYPE", "Sandybridge"}, {"DNNL_MAX_CPU_ISA", "AVX"}},
                   "2"});
  if (has(" avx2 "))
    out.push_back(
        {"haswell_avx2", {{"OPENBLAS_CORETYPE", "Haswell"}, {"DNNL_MAX_CPU_ISA", "AVX2"}}, "3"});
  if (has(" avx512f "))
    out.push_back({"skylakex_avx512",
                   {{"OPENBLAS_CORETYPE", "SkylakeX"}, {"DNNL_MAX_CPU_ISA", "AVX512_CORE"}},
                   "2"});
  if (has(" avx512_bf16 "))
    out.push_back({"sapphirerapids", {{"OPENBLAS_CORETYPE", "SapphireRapids"}}, "1"});
  out.push_back({"four_threads", {{"OMP_NUM_THREADS", "4"}}, "2"});
  return out;
}

class Bytes : public testing::Test {
 protected:
  void SetUp() override {
    archive_ = shared_archive("mini_an4.tar.gz");
    if (archive_.empty()) GTEST_SKIP() << "../shared/data/mini_an4.tar.gz is not here";
  }
  // All files below a folder that are results: no logs, journals or times.
  static std::map<std::string, std::string> files_of(const fs::path& folder,
                                                     const std::set<std::string>& names) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (names.contains(entry.path().filename().string()))
        out[fs::relative(entry.path(), folder).string()] = read_file(entry.path());
    return out;
  }
  void run(const RecipeFolder& recipe, std::vector<std::string> words,
           const std::map<std::string, std::string>& env) const {
    words.insert(words.begin(), in_bin("tutti"));
    words.push_back("create_dataset.source=" + archive_);
    const CommandResult result = run_command(
        {.argv = words, .env = env, .cwd = recipe.path(), .timeout = std::chrono::minutes(5)});
    ASSERT_TRUE(result.ok()) << result.describe();
  }
  void train(const RecipeFolder& recipe, const std::string& training) const {
    run(recipe,
        {"run", "--stages", "create_dataset", "train_tokenizer", "collect_stats", "train",
         "--training_config", training},
        {});
  }
  // All recordings one after the other, twice, and 12 pieces of that, of 4 to 6 seconds.
  static void make_long_set(const RecipeFolder& recipe) {
    data::Audio whole;
    for (const char* part : {"train", "valid", "test", "train", "valid", "test"}) {
      const std::string name = std::string("data/") + part + ".jsonl";
      for (const auto& line : split(trim(recipe.read(name)), '\n')) {
        const fs::path audio = parse_json(line, name).at("audio").get<std::string>();
        const data::Audio one = data::read_audio(recipe.path() / "data" / audio);
        whole.sample_rate = one.sample_rate;
        whole.samples.insert(whole.samples.end(), one.samples.begin(), one.samples.end());
      }
    }
    data::write_wav(recipe.path() / "data/whole.wav", whole);
    std::string lines;
    for (int i = 0; i < 12; ++i)
      lines += to_json_line({{"id", "long" + std::to_string(100 + i)},
                             {"audio", "whole.wav"},
                             {"text", "A"},
                             {"begin", 0.1 * i},
                             {"end", 0.1 * i + 4 + 0.2 * i}}) +
               "\n";
    write_file_atomic(recipe.path() / "data/long.jsonl", lines);
    std::string text = recipe.read("conf/inference.yaml");
    const auto begin = text.find("dataset:"), end = text.find("\nmodel:");
    text.replace(begin, end - begin,
                 "dataset:\n  test:\n    - {name: long, data_src_args: {manifest: "
                 "\"${recipe_dir}/data/long.jsonl\"}}\n");
    write_file_atomic(recipe.path() / "conf/inference_long.yaml", text);
  }
  std::string archive_;
};

TEST_F(Bytes, AreTheSameUnderEveryKernelInstructionSetAndNumberOfWorkers) {
  const RecipeFolder recipe("mini_an4");
  const std::string training = recipe.conf("training_asr_transformer.yaml");
  train(recipe, training);
  ASSERT_FALSE(HasFatalFailure());
  std::map<std::string, std::map<std::string, std::string>> written;
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    const fs::path out = recipe.path() / ("bytes_" + setting.name);
    const std::string workers = "parallel.n_workers=" + setting.workers;
    run(recipe,
        {"run", "--stages", "infer", "measure", "--inference_config", recipe.conf("inference.yaml"),
         "--metrics_config", recipe.conf("metrics.yaml"), "--training_config", training, workers,
         "model.beam_size=5", "inference_dir=" + (out / "inference").string()},
        setting.env);
    run(recipe,
        {"collect_stats", "--config", training, workers, "stats_dir=" + (out / "stats").string()},
        setting.env);
    // A user's own command over `map`, whose output is its own.
    run_command({.argv = {in_bin("tutti"), "map", "--items", "20", "--output_dir",
                          (out / "map").string(), workers, "--", "echo {} | sha1sum"},
                 .env = setting.env});
    written[setting.name] =
        files_of(out, {"results.jsonl", "hyp.scp", "ref.scp", "metrics.json", "feats_stats.npz",
                       "feats_lengths_stats.npz", "batch_keys", "stats_keys", "feats_shape"});
    if (HasFatalFailure()) return;
  }
  const auto& [first_name, first] = *written.begin();
  EXPECT_GE(first.size(), 7U);
  for (const auto& [name, files] : written) {
    ASSERT_EQ(files.size(), first.size()) << name;
    for (const auto& [file, bytes] : files)
      EXPECT_EQ(bytes, first.at(file)) << file << " under " << name << " and " << first_name;
  }
}

// A score is a sum over the utterance, and so is its noise. Pieces of one long recording, decoded in every way in which
// the order of sums differs.
TEST_F(Bytes, OfLongUtterancesAreTheSameInEveryBatchAndWithEveryNumberOfThreads) {
  const RecipeFolder recipe("mini_an4");
  const std::string training = recipe.conf("training_asr_transformer.yaml");
  train(recipe, training);
  ASSERT_FALSE(HasFatalFailure());
  make_long_set(recipe);
  struct Way {
    std::string threads, batch;
    std::map<std::string, std::string> env;
  };
  std::vector<Way> ways;
  for (const char* threads : {"1", "2"})
    for (const char* batch : {"1", "4", "8"}) ways.push_back({threads, batch, {}});
  for (const Setting& setting : settings()) ways.push_back({"1", "4", setting.env});
  std::set<std::string> written;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    auto env = ways[i].env;
    env["OMP_NUM_THREADS"] = ways[i].threads;
    const fs::path out = recipe.path() / ("way_" + std::to_string(i));
    run(recipe,
        {"infer", "--inference_config", recipe.conf("inference_long.yaml"), "--training_config",
         training, "+batch_size=" + ways[i].batch, "model.beam_size=2", "+model.nbest=2",
         "+model.token_times=true", "parallel.n_workers=1",
         "+parallel.options.threads_per_worker=" + ways[i].threads,
         "inference_dir=" + out.string()},
        env);
    ASSERT_FALSE(HasFatalFailure());
    written.insert(read_file(out / "long/results.jsonl"));
    EXPECT_EQ(written.size(), 1U) << "threads " << ways[i].threads << ", batch " << ways[i].batch
                                  << ", " << testing::PrintToString(ways[i].env);
  }
  double lowest = 0;
  std::size_t count = 0;
  for (const auto& line : split(trim(*written.begin()), '\n')) {
    lowest =
        std::min(lowest, parse_json(line, "results.jsonl").at("result").at("score").get<double>());
    ++count;
  }
  EXPECT_EQ(count, 12U);
  EXPECT_LT(lowest, -300) << "the scores are small: nothing is shown";
}

}  // namespace
}  // namespace tutti::systems
