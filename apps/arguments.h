// Arguments of a command, the same way for every program: `--help` exits 0; what cannot be understood is a
// ConfigError (exit 2) that names the option most likely meant.
//
//   CLI::App app{"Wait for the run in a folder", "tutti wait"};
//   app.footer(example("tutti wait exp/decoded"));
//   if (const auto code = parse_arguments(app, argc, argv)) return *code;
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tutti::apps {

// The end of a help text: lines to type.
std::string example(const std::string& lines);

// Empty: go on. Else the exit code after `--help` was printed.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv);
// The same for words in their order, without the program's name.
std::optional<int> parse_arguments(CLI::App& app, std::vector<std::string> words);

// Throws what parse_arguments throws, and prints nothing: for a program that hands the words on.
void check_arguments(CLI::App& app, int argc, char** argv);

}  // namespace tutti::apps
