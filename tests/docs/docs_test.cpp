// The examples of docs/*.md that are marked ```console test are run, so that they cannot go stale.
//
//   ```console test
//   $ tutti config check recipes/mini_an4/conf/metrics.yaml
//   recipes/mini_an4/conf/metrics.yaml: ok (metrics config)
//   ```
//
// A line that begins with "$ " is a command for bash, run in the root of the sources with the built
// programs in PATH; the lines up to the next command are what it prints ("..." stands for any
// text).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "tests/docs/blocks.h"
#include "tests/places.h"
#include "tutti/core/subprocess.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

struct Example {
  std::string where;  // "docs/recipes.md:23"
  std::string command;
  std::string expected;
};

std::vector<Example> examples_of(const fs::path& file) {
  std::vector<Example> examples;
  for (const Block& block : blocks_of(file)) {
    if (block.language != "console test") continue;
    for (const auto& line : block.lines)
      if (line.starts_with("$ "))
        examples.push_back({block.where, line.substr(2), ""});
      else if (!examples.empty())
        examples.back().expected += line + "\n";
  }
  return examples;
}

// "..." is any text, everything else is itself.
bool matches(const std::string& text, const std::string& pattern) {
  std::size_t at = 0;
  std::size_t begin = 0;
  bool anywhere = false;
  while (true) {
    const std::size_t end = pattern.find("...", begin);
    const std::string part = pattern.substr(begin, end == std::string::npos ? end : end - begin);
    const std::size_t found =
        anywhere ? text.find(part, at)
                 : (text.compare(at, part.size(), part) == 0 ? at : std::string::npos);
    if (found == std::string::npos) return false;
    at = found + part.size();
    if (end == std::string::npos) return at == text.size() || (part.empty() && anywhere);
    begin = end + 3;
    anywhere = true;
  }
}

TEST(Docs, MarkedExamplesPrintWhatTheySay) {
  const std::string path = in_bin() + ":" + std::getenv("PATH");
  int count = 0;
  for (const fs::path& page : docs_pages()) {
    for (const auto& example : examples_of(page)) {
      SCOPED_TRACE(example.where + ": " + example.command);
      const auto result = run_command({.argv = {"bash", "-c", example.command},
                                       .env = {{"PATH", path}, {"LC_ALL", "C.UTF-8"}},
                                       .cwd = in_source(),
                                       .timeout = std::chrono::minutes(2)});
      EXPECT_TRUE(result.ok()) << result.describe();
      EXPECT_TRUE(matches(result.out, example.expected)) << "printed:\n"
                                                         << result.out << "but the page says:\n"
                                                         << example.expected;
      ++count;
    }
  }
  EXPECT_GE(count, 4);
}

// ```yaml blocks are whole configs or top-level parts of one; ```yaml plugin names what the plugins of extending.md have,
// which are built from the page.
TEST(Docs, YamlBlocksPassTheCheck) {
  const TempFolder folder;
  const fs::path file = folder.path() / "block.yaml";
  const std::string library = in_bin("libtutti_docs_plugin_");
  const std::string plugins =
      "plugins: [" + library + "model.so, " + library + "parts.so, " + library + "runner.so]\n";
  int count = 0;
  for (const fs::path& page : docs_pages())
    for (const Block& block : blocks_of(page)) {
      if (block.language != "yaml" && block.language != "yaml plugin") continue;
      std::string text = block.language == "yaml" ? "" : plugins;
      for (const auto& line : block.lines)
        if (!line.starts_with("plugins: ")) text += line + "\n";
      write_file_atomic(file, text);
      const auto result =
          run_command({.argv = {in_bin("tutti"), "config", "check", "--no_files", file.string()},
                       .timeout = std::chrono::minutes(1)});
      EXPECT_TRUE(result.ok()) << block.where << "\n" << text << result.err;
      ++count;
    }
  EXPECT_GE(count, 10);
}

TEST(Docs, TheConfigReferenceIsUpToDate) {
  const std::string committed = read_file(fs::path(in_source("docs/config-reference.md")));
  EXPECT_TRUE(run_command({.argv = {in_bin("tutti"), "config", "reference"}}).out == committed)
      << "run: tutti config reference > docs/config-reference.md";
}

TEST(Docs, LinksBetweenPagesLeadSomewhere) {
  static const std::regex kPage("docs/[a-z0-9-]+\\.md");
  for (const fs::path& page : docs_pages()) {
    const std::string text = read_file(page);
    for (auto it = std::sregex_iterator(text.begin(), text.end(), kPage);
         it != std::sregex_iterator(); ++it)
      EXPECT_TRUE(fs::exists(fs::path(in_source()) / it->str()))
          << page.filename() << " names " << it->str();
  }
}

}  // namespace
}  // namespace tutti
