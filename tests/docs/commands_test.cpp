// No block of the docs escapes: YAML is checked and ```console test is run (docs_test.cpp), plugins are built
// (tests/systems); the commands of ```sh and ```console need a cluster, a GPU, root or an hour and are looked up word by
// word in what --help says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "tests/docs/blocks.h"
#include "tests/places.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const fs::path kSource = in_source();

// Programs of others, alone or before `tutti`.
const std::set<std::string> kForeign = {
    "apptainer", "apt-get", "cd",  "cmake",     "cp",          "curl",
    "export",    "find",    "git", "ls",        "podman",      "python3",
    "scp",       "srun",    "tar", "./demo.sh", "./export.py", "~/torch/bin/pip"};

std::vector<fs::path> all_pages() {
  std::vector<fs::path> pages = docs_pages();
  pages.push_back(kSource / "README.md");
  for (const auto& entry : fs::directory_iterator(kSource / "recipes"))
    if (fs::exists(entry.path() / "README.md")) pages.push_back(entry.path() / "README.md");
  return pages;
}

// The simple commands of a block, in words: lines are joined, comments and quotes go, variables are filled in.
std::vector<Words> commands_of(const Block& block) {
  std::string script;
  for (const auto& line : block.lines) {
    if (block.language == "console") {
      if (line.starts_with("$ ")) script += line.substr(2) + "\n";
    } else if (line.ends_with("\\")) {
      script += line.substr(0, line.size() - 1) + " ";
    } else {
      script += line + "\n";
    }
  }
  std::vector<Words> commands(1);
  std::map<std::string, std::string> variables;
  std::string word;
  const auto end_word = [&] {
    for (const auto& [name, value] : variables)
      if (const auto at = word.find("$" + name); at != std::string::npos)
        word.replace(at, name.size() + 1, value);
    static const std::regex kAssignment("([A-Z]+)=(.*)");
    std::smatch match;
    if (commands.back().empty() && std::regex_match(word, match, kAssignment))
      variables[match[1]] = match[2];
    else if (!word.empty())
      commands.back().push_back(word);
    word.clear();
  };
  char quote = 0;
  for (std::size_t i = 0; i < script.size(); ++i) {
    const char c = script[i];
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '#' && word.empty()) {
      i = script.find('\n', i) - 1;
    } else if (c == '\n' || c == '|' || c == '&' || c == ';') {
      end_word();
      commands.emplace_back();
    } else if (c == ' ') {
      end_word();
    } else {
      word += c;
    }
  }
  std::erase_if(commands, [](const Words& words) { return words.empty(); });
  return commands;
}

// What a command says of itself; empty when there is no such command.
std::string help_of(const Words& command) {
  static std::map<Words, std::string> known;
  const auto found = known.find(command);
  if (found != known.end()) return found->second;
  Words argv = command;
  argv.insert(argv.begin(), in_bin("tutti"));
  argv.emplace_back("--help");
  const auto result = run_command({.argv = argv, .timeout = std::chrono::minutes(1)});
  return known[command] = result.ok() ? result.out : "";
}

bool has_word(const std::string& text, const std::string& word) {
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const auto is_inside = [&](std::size_t i) {
      return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) != 0 ||
                                 text[i] == '_' || text[i] == '-');
    };
    if (!(at > 0 && is_inside(at - 1)) && !is_inside(at + word.size())) return true;
  }
  return false;
}

// Options, stages and subcommands of one `tutti ...`.
void look_up(const Words& words) {
  if (words.empty()) return;
  static const std::set<std::string> kWithSubcommand = {"config", "checkpoint", "parallel",
                                                        "model"};
  Words command;
  std::size_t at = 0;
  if (!words[0].starts_with("-")) command.push_back(words[at++]);
  if (!command.empty() && kWithSubcommand.contains(command[0]) && at < words.size())
    command.push_back(words[at++]);
  const std::string help = help_of(command);
  ASSERT_FALSE(help.empty()) << "no such command";
  bool stages = false;
  for (; at < words.size() && words[at] != "--" && words[at] != ":::"; ++at) {
    std::string word = words[at];
    if (word.starts_with("[")) word = word.substr(1, word.find(']') - 1);  // [--option]
    if (word.size() > 1 && word[0] == '-') {
      const std::string option = word.substr(0, word.find('='));
      EXPECT_TRUE(has_word(help, option)) << option << " is not in --help";
      stages = option == "--stages";
    } else if (stages && word != "..." && word != "all") {
      EXPECT_TRUE(has_word(help, word)) << "no stage '" << word << "'";
    }
  }
}

TEST(Docs, CommandsAreInTheHelp) {
  const std::string run_help = run_command({.argv = {(kSource / "run").string(), "help"}}).out;
  int count = 0;
  for (const fs::path& page : all_pages())
    for (const Block& block : blocks_of(page)) {
      if (block.language != "sh" && block.language != "console") continue;
      for (const Words& words : commands_of(block)) {
        SCOPED_TRACE(block.where + ": " + join(words, " "));
        const auto tutti = std::find_if(words.begin(), words.end(), [](const std::string& word) {
          return fs::path(word).filename() == "tutti" && !word.ends_with("/");
        });
        ++count;
        if (words[0] == "./run") {
          ASSERT_GT(words.size(), 1U);
          EXPECT_TRUE(has_word(run_help, "  " + words[1])) << "./run has no " << words[1];
        } else if (tutti == words.begin()) {
          look_up({words.begin() + 1, words.end()});
        } else {
          EXPECT_TRUE(kForeign.contains(words[0])) << "a program nobody looked at";
          const bool starts_tutti = words[0] == "srun" || words[0] == "apptainer";
          if (starts_tutti && tutti != words.end()) look_up({tutti + 1, words.end()});
        }
      }
    }
  EXPECT_GT(count, 60);
}

// Examples of `tutti run` with the files of a recipe, as --help, docs/commands.md and docs/getting-started.md have them.
TEST(Docs, ExamplesOfRunAreWholeCommands) {
  std::string text = run_command({.argv = {in_bin("tutti"), "run", "--help"}}).out;
  for (const char* page : {"docs/commands.md", "docs/getting-started.md"})
    text += read_file(kSource / page);
  text = std::regex_replace(text, std::regex(R"(\\\n *)"), "");
  const std::map<std::string, std::string> files = {
      {"--training_config F", "--training_config conf/training.yaml"},
      {"--inference_config F", "--inference_config conf/inference.yaml"},
      {"--metrics_config F", "--metrics_config conf/metrics.yaml"},
      {"--config F", "--config conf/training.yaml"}};
  const std::regex command(R"(tutti (run --stage[^`\n]*))");
  int count = 0;
  for (std::sregex_iterator found(text.begin(), text.end(), command), end; found != end; ++found) {
    std::string line = (*found)[1];
    for (const auto& [named, meant] : files)
      if (const auto at = line.find(named); at != std::string::npos)
        line.replace(at, named.size(), meant);
    const auto result = run_command(
        {.argv = {"bash", "-c", shell_quote(in_bin("tutti")) + " " + line + " --dry_run"},
         .cwd = kSource / "recipes/digits"});
    EXPECT_TRUE(result.ok()) << result.describe();
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(Docs, StagesCompleteInBash) {
  const std::string script = (kSource / "packaging/completions/tutti.bash").string();
  const auto complete = [&](const std::string& words) {
    return run_command({.argv = {"bash", "-c",
                                 "PATH=" + shell_quote(in_bin()) + ":$PATH; . " +
                                     shell_quote(script) + "; COMP_WORDS=(" + words +
                                     "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tutti; echo "
                                     "\"${COMPREPLY[*]}\""}})
        .out;
  };
  EXPECT_EQ(complete("tutti run --stages tra"), "train_tokenizer train\n");
  EXPECT_EQ(complete("tutti run --stages train inf"), "infer\n");
  EXPECT_EQ(complete("tutti run --stage ''"), "1 2 3 4 5 6 7 8 9\n");
}

// The commands of a recipe's README with its own files: they exist, and pass the check with the overrides that are shown.
TEST(Docs, RecipesAreCheckedAsTheirReadmesTypeThem) {
  static const std::regex kFile("conf/[^ ]+\\.yaml");
  for (const auto& entry : fs::directory_iterator(kSource / "recipes")) {
    if (!fs::exists(entry.path() / "README.md")) continue;
    for (const Block& block : blocks_of(entry.path() / "README.md")) {
      if (block.language != "sh") continue;
      for (const Words& words : commands_of(block)) {
        const bool stage = words[0] == "tutti" && words.size() > 1 && words[1] == "train";
        Words check = {in_bin("tutti"), "config", "check", "--no_files"};
        for (const auto& word : words) {
          if (!std::regex_match(word, kFile)) continue;
          EXPECT_TRUE(fs::exists(entry.path() / word)) << block.where << ": " << word;
          check.push_back(word);
        }
        if (!stage) continue;
        for (const auto& word : words)
          if (word.find('=') != std::string::npos && word[0] != '-') check.push_back(word);
        const auto result = run_command({.argv = check, .cwd = entry.path()});
        EXPECT_TRUE(result.ok()) << block.where << ": " << join(words, " ") << "\n" << result.err;
      }
    }
  }
}

TEST(Docs, NoBlockEscapes) {
  const std::set<std::string> looked_at = {"yaml",
                                           "yaml plugin",
                                           "console test",
                                           "console",
                                           "sh",
                                           "sh package",
                                           "cmake package",
                                           "cpp plugin model",
                                           "cpp plugin parts",
                                           "cpp plugin runner",
                                           "cpp plugin corpus",
                                           "text",  // what programs print, and diagrams
                                           "json",
                                           "cpp"};  // compiled (examples.py)
  static const std::regex kCommand(R"(^(\$ )?(tutti|build/bin/tutti|\./run) .*)");
  for (const fs::path& page : all_pages())
    for (const Block& block : blocks_of(page)) {
      EXPECT_TRUE(looked_at.contains(block.language))
          << block.where << ": ```" << block.language << ": say what it is";
      if (block.language == "json") {
        EXPECT_NO_THROW(parse_json(block.text(), block.where));
      }
      if (block.language != "text") continue;
      for (const auto& line : block.lines)
        EXPECT_FALSE(std::regex_match(line, kCommand))
            << block.where << ": a command: mark the block as sh";
    }
}

}  // namespace
}  // namespace tutti
