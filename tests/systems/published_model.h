// Commands on published models. The folders and what ESPnet's own program says for them are made by
// tools/make_espnet_folders.py.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/places.h"
#include "tests/systems/espnet/sound.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"

namespace tutti::systems {

namespace fs = std::filesystem;

class Published : public testing::Test {
 protected:
  static fs::path folder_of(const std::string& family) {
    return fs::path(in_source("tests/systems/espnet")) / family;
  }
  static Json expected_of(const std::string& family) {
    const std::string file = folder_of(family).string() + ".json";
    return parse_json(read_file(file), file);
  }

  CommandResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), in_bin("tutti"));
    return run_command({.argv = words,
                        .env = {{"TUTTI_CACHE", (here() / "cache").string()}},
                        .cwd = here(),
                        .timeout = std::chrono::minutes(5)});
  }

  const fs::path& here() const { return folder_.path(); }

  std::vector<std::string> write_sounds(const std::string& task, std::size_t count = 4) const {
    std::vector<std::string> names;
    for (const auto& samples : test_sounds(task, count)) {
      names.push_back("sound" + std::to_string(names.size()) + ".wav");
      data::write_wav(here() / names.back(), {.samples = samples, .sample_rate = 16000});
    }
    return names;
  }

  // The texts of `tutti infer --model`, one per file.
  std::vector<std::string> decode(const std::string& model, std::vector<std::string> words) const {
    words.insert(words.begin(), {"infer", "--model", model, "--device", "cpu", "--json"});
    const CommandResult result = run(words);
    EXPECT_TRUE(result.ok()) << result.describe();
    std::vector<std::string> texts;
    for (const auto& line : split(trim(result.out), '\n'))
      texts.push_back(parse_json(line, "infer").value("text", "?"));
    return texts;
  }

  TempFolder folder_;
};

// What ESPnet says of every sound.
inline std::vector<std::string> texts(const Json& list) {
  std::vector<std::string> out;
  for (const Json& text : list) out.push_back(without_second_end(text));
  return out;
}

// The options of a case and the files, as words of a command.
inline std::vector<std::string> words_of(const Json& options,
                                         const std::vector<std::string>& files) {
  std::vector<std::string> words;
  for (const auto& [key, value] : options.items()) words.push_back(key + "=" + value.dump());
  words.insert(words.end(), files.begin(), files.end());
  return words;
}

inline constexpr std::size_t kMany = 32;

}  // namespace tutti::systems
