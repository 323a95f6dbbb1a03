#include "apps/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::apps {
namespace {

// The command the user was in: `tutti config check`, not `tutti config`.
const CLI::App* innermost(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string full_name(const CLI::App* app) {
  const CLI::App* parent = app->get_parent();
  return parent == nullptr ? app->get_name() : full_name(parent) + " " + app->get_name();
}

std::vector<std::string> option_names(const CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// What to do about a word that nobody expected.
std::string advice(const CLI::App* app, const std::string& word) {
  const std::string help = "see " + full_name(app) + " --help";
  if (!word.starts_with("-")) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(sub->get_name());
    const std::string guess = closest_match(word, names);
    if (!guess.empty()) return "did you mean '" + guess + "'?";
    return names.empty() ? help : "write one of " + join(names, ", ");
  }
  const std::string name = word.substr(0, word.find('='));
  const std::string guess = closest_match(name, option_names(app));
  if (!guess.empty()) return "did you mean '" + guess + "'?";
  const bool dotted = name.find('.') != std::string::npos;
  const std::string key = name.substr(
      name.find_first_not_of('-') == std::string::npos ? name.size() : name.find_first_not_of('-'));
  if (dotted) return "an override has no dashes: " + key + "=VALUE";
  return help;
}

[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* inner = innermost(&app);
  std::vector<std::string> extras = app.remaining(true);
  // CLI11 says only that a subcommand is required, also where one was misspelt.
  if (!extras.empty()) {
    const auto option = std::find_if(extras.begin(), extras.end(),
                                     [](const std::string& word) { return word.starts_with("-"); });
    const std::string& word = option != extras.end() ? *option : extras.front();
    throw ConfigError(full_name(inner) + ": unknown argument '" + word + "'", advice(inner, word));
  }
  throw ConfigError(full_name(inner) + ": " + error.what(), "see " + full_name(inner) + " --help");
}

}  // namespace

std::string example(const std::string& lines) {
  std::string text = "example:";
  for (const std::string& line : split(lines, '\n')) text += "\n  " + line;
  return text;
}

std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv) {
  return parse_arguments(app, std::vector<std::string>(argv + 1, argv + argc));
}

std::optional<int> parse_arguments(CLI::App& app, std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // as CLI11 wants it
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    refuse(app, error);
  }
  return std::nullopt;
}

void check_arguments(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) refuse(app, error);
  }
}

}  // namespace tutti::apps
