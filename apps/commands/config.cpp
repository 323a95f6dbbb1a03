// tutti config check | show | reference
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "tutti/config/check.h"
#include "tutti/config/config_files.h"
#include "tutti/config/merge.h"
#include "tutti/config/reference.h"
#include "tutti/core/error.h"
#include "tutti/core/program.h"
#include "tutti/systems/standard_checker.h"

namespace tutti::apps {
namespace {

struct Arguments {
  std::vector<std::string> words;  // files and overrides, as typed
  std::string kind;
  std::string parallel;
  bool quiet = false;
  bool json = false;
};

config::LoadOptions load_options(const Arguments& arguments) {
  config::LoadOptions options;
  for (const auto& word : arguments.words) {
    std::error_code error;
    const bool is_file = std::filesystem::exists(word, error);
    if (!is_file && config::is_override(word))
      options.overrides.push_back(word);
    else
      options.files.emplace_back(word);
  }
  if (options.files.empty())
    throw ConfigError("no config file given", "tutti config check FILE... [key=value...]");
  return options;
}

// All of them on stderr, sorted; the exit code that follows.
int report(const config::Problems& problems, bool quiet) {
  if (!quiet)
    for (const auto& warning : problems.sorted_warnings())
      std::cerr << "warning: " << warning.describe() << "\n";
  const auto sorted = problems.sorted();
  for (const auto& problem : sorted) std::cerr << problem.describe() << "\n";
  if (sorted.empty()) return static_cast<int>(ExitCode::kDone);
  if (!quiet) std::cerr << sorted.size() << (sorted.size() == 1 ? " problem\n" : " problems\n");
  return static_cast<int>(ExitCode::kConfig);
}

int check(const Arguments& arguments) {
  const config::LoadOptions options = load_options(arguments);
  std::optional<config::FileKind> kind;
  if (!arguments.kind.empty()) kind = config::kind_from_name(arguments.kind);
  config::FileChecker checker = systems::standard_checker();
  config::Problems problems;
  const config::LoadedConfig loaded =
      config::load_config(options, kind, arguments.parallel, checker, problems);
  checker.check(loaded.files.kind, loaded.root, config::referenced_keys(loaded.files.merged),
                problems);
  const int code = report(problems, arguments.quiet);
  if (code == 0 && !arguments.quiet) {
    const auto seen = loaded.files.kind;
    std::cout << options.files[0].string() << ": ok (" << (seen ? config::kind_name(*seen) : "any")
              << " config)\n";
  }
  return code;
}

int show(const Arguments& arguments) {
  config::Problems problems;
  config::FileChecker checker = systems::standard_checker();
  std::optional<config::FileKind> kind;
  if (!arguments.kind.empty()) kind = config::kind_from_name(arguments.kind);
  const config::Node root =
      config::load_config(load_options(arguments), kind, arguments.parallel, checker, problems)
          .root;
  const int code = report(problems, arguments.quiet);
  if (code != 0) return code;
  if (arguments.json)
    std::cout << config::to_json(root).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  else
    std::cout << config::to_yaml(root);
  return code;
}

// A recipe's plugin uses symbols of the stages' program, so files that name plugins are checked there. Returns when
// none does, or where that program was not built.
void go_where_plugins_load(const Arguments& arguments, char** argv) {
  constexpr const char* kSibling = "tutti-run";
  const std::filesystem::path sibling = own_program().parent_path() / kSibling;
  if (own_program().filename() == kSibling || !std::filesystem::exists(sibling)) return;
  config::Problems unread;  // the same ones come again when the files are loaded to be checked
  std::optional<config::FileKind> kind;
  if (!arguments.kind.empty()) kind = config::kind_from_name(arguments.kind);
  const auto files = config::read_config_files(kind, load_options(arguments).files, unread);
  if (!config::plugin_lists(files, systems::standard_checker(), config::Resolvers::standard())
           .empty())
    ::execv(sibling.c_str(), argv);
}

}  // namespace

int run_config(int argc, char** argv) {
  CLI::App app{"Check or show config files", "tutti config"};
  app.footer(
      example("tutti config check conf/training.yaml num_device=4\n"
              "tutti config show conf/training.yaml"));
  app.require_subcommand(1);
  Arguments arguments;
  const auto add_common = [&](CLI::App* sub) {
    sub->add_option("FILE", arguments.words,
                    "config files, later ones laid over earlier ones, then overrides: a.b=c, "
                    "a.0.b=c, +new=1, ~gone")
        ->required()
        ->option_text("... [KEY=VALUE ...]");
    sub->add_option("--kind", arguments.kind, "kind of file, when its name and keys do not tell")
        ->check(
            CLI::IsMember({"training", "inference", "metrics", "publication", "demo", "parallel"}));
    sub->add_option("--parallel", arguments.parallel, "name of the parallel block to use");
    sub->add_flag("--quiet", arguments.quiet, "problems only");
  };
  CLI::App* check_command = app.add_subcommand("check", "find every problem; exit 0 or 2");
  add_common(check_command);
  CLI::App* show_command = app.add_subcommand("show", "print the config as the programs see it");
  add_common(show_command);
  show_command->add_flag("--json", arguments.json, "as JSON");
  CLI::App* reference_command = app.add_subcommand("reference", "print docs/config-reference.md");
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  if (reference_command->parsed()) {
    std::cout << config::reference_markdown(systems::standard_checker().catalogue(),
                                            systems::reference_tables());
    return 0;
  }
  go_where_plugins_load(arguments, argv);
  return check_command->parsed() ? check(arguments) : show(arguments);
}

}  // namespace tutti::apps
