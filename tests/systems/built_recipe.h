// mini_an4 with every stage done once, and copies of it to do things to: copying also shows that a
// folder goes on at another place.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "tests/systems/recipe_folder.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::systems {

class BuiltRecipe : public testing::Test {
 protected:
  static constexpr const char* kExp = "exp/training_asr_transformer/";
  static constexpr const char* kInference = "exp/training_asr_transformer/inference/";

  static void SetUpTestSuite() {
    if (shared_archive("mini_an4.tar.gz").empty()) return;
    built_ = std::make_unique<RecipeFolder>("mini_an4");
    // Bigger steps than the recipe's, so that more training is other weights.
    const std::string conf = built_->conf("training_asr_transformer.yaml");
    std::string text = read_file(conf);
    const auto at = text.find("warmup_steps: 100");
    text.replace(at, std::strlen("warmup_steps: 100"), "warmup_steps: 1");
    const auto source = text.find("  source: ");
    text.replace(source, text.find('\n', source) - source,
                 "  source: " + shared_archive("mini_an4.tar.gz"));
    write_file_atomic(conf, text);
    const CommandResult result = built_->run({"run", "--stages", "all", "--training_config", conf,
                                              "--inference_config", built_->conf("inference.yaml"),
                                              "--metrics_config", built_->conf("metrics.yaml")});
    if (!result.ok()) throw InternalError(result.describe());
  }
  static void TearDownTestSuite() { built_.reset(); }

  void SetUp() override {
    if (!built_) GTEST_SKIP() << "../shared/data/mini_an4.tar.gz is not here";
    std::filesystem::create_directories(folder_.path() / "elsewhere");
    std::filesystem::copy(
        built_->path(), path_,
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
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
    words.insert(words.begin(), TUTTI_BIN_DIR "/tutti");
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

  static std::unique_ptr<RecipeFolder> built_;
  TempFolder folder_;
  std::filesystem::path path_ = folder_.path() / "elsewhere" / "mini_an4";
};

inline std::unique_ptr<RecipeFolder> BuiltRecipe::built_;

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
