// mini_an4 with every stage done once, and copies of it to do things to. It has moved since it was
// made, and its first place is gone, so every copy also shows that a folder goes on elsewhere.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/places.h"
#include "tests/systems/recipe_folder.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::systems {

// All stages of mini_an4 in `recipe`. Bigger steps than the recipe's, so that more training is other
// weights.
inline void build_mini_an4(const RecipeFolder& recipe) {
  const std::string conf = recipe.conf("training_asr_transformer.yaml");
  std::string text = read_file(conf);
  const auto at = text.find("warmup_steps: 100");
  text.replace(at, std::strlen("warmup_steps: 100"), "warmup_steps: 1");
  const auto source = text.find("  source: ");
  text.replace(source, text.find('\n', source) - source,
               "  source: " + shared_archive("mini_an4.tar.gz"));
  write_file_atomic(conf, text);
  const CommandResult result =
      recipe.run({"run", "--stages", "all", "--training_config", conf, "--inference_config",
                  recipe.conf("inference.yaml"), "--metrics_config", recipe.conf("metrics.yaml")});
  if (!result.ok()) throw InternalError(result.describe());
}

inline void copy_recipe(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::create_directories(to.parent_path());
  std::filesystem::copy(
      from, to,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
}

class BuiltRecipe : public testing::Test {
 protected:
  static constexpr const char* kExp = "exp/training_asr_transformer/";
  static constexpr const char* kInference = "exp/training_asr_transformer/inference/";

  // ctest has it made once for all tests (build_mini_an4); by itself a test program makes its own.
  static void SetUpTestSuite() {
    if (shared_archive("mini_an4.tar.gz").empty()) return;
    if (const char* made = std::getenv("TUTTI_BUILT_MINI_AN4")) {
      built_ = made;
      return;
    }
    own_ = std::make_unique<TempFolder>();
    built_ = own_->path() / "mini_an4";
    const RecipeFolder recipe("mini_an4");
    build_mini_an4(recipe);
    copy_recipe(recipe.path(), built_);
  }
  static void TearDownTestSuite() { own_.reset(); }

  void SetUp() override {
    if (built_.empty()) GTEST_SKIP() << "../shared/data/mini_an4.tar.gz is not here";
    copy_recipe(built_, path_);
  }

  std::string conf(const std::string& file) const { return (path_ / "conf" / file).string(); }
  std::string read(const std::string& file) const { return read_file(path_ / file); }
  bool has(const std::string& file) const { return std::filesystem::exists(path_ / file); }
  void write(const std::string& file, const std::string& text) const {
    write_file_atomic(path_ / file, text);
  }
  std::size_t num_lines(const std::string& file) const {
    return split(trim(read(file)), '\n').size();
  }
  CommandResult run(std::vector<std::string> words, const std::string& input = {}) const {
    words.insert(words.begin(), in_bin("tutti"));
    Command command{.argv = words, .cwd = path_, .timeout = std::chrono::minutes(5)};
    command.stdin_text = input;
    return run_command(command);
  }
  CommandResult infer(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"infer", "--training_config",
                                      conf("training_asr_transformer.yaml"), "--inference_config",
                                      conf("inference.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  CommandResult stage(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {name, "--config", conf("training_asr_transformer.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }

  static std::filesystem::path built_;
  static std::unique_ptr<TempFolder> own_;
  TempFolder folder_;
  std::filesystem::path path_ = folder_.path() / "elsewhere" / "mini_an4";
};

inline std::filesystem::path BuiltRecipe::built_;
inline std::unique_ptr<TempFolder> BuiltRecipe::own_;

// A WAV of 32-bit floats, which can hold what a recording should not.
inline void write_float_wav(const std::filesystem::path& file, const std::vector<float>& samples,
                            std::uint32_t rate = 16000) {
  std::string bytes;
  const auto put = [&](std::uint32_t value, int size) {
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  };
  const auto size = static_cast<std::uint32_t>(4 * samples.size());
  bytes += "RIFF";
  put(36 + size, 4);
  bytes += "WAVEfmt ";
  put(16, 4);
  put(3, 2);  // float
  put(1, 2);
  put(rate, 4);
  put(4 * rate, 4);
  put(4, 2);
  put(32, 2);
  bytes += "data";
  put(size, 4);
  bytes.append(reinterpret_cast<const char*>(samples.data()), size);
  write_file_atomic(file, bytes);
}

}  // namespace tutti::systems
