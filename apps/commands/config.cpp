// tutti config check | show | reference
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "apps/command.h"
#include "tutti/config/check.h"
#include "tutti/config/merge.h"
#include "tutti/config/reference.h"
#include "tutti/core/error.h"
#include "tutti/data/batching/settings.h"
#include "tutti/parallel/backends/backend.h"

namespace tutti::apps {
namespace {

struct Arguments {
  std::vector<std::string> words;  // files and overrides, as typed
  std::string kind;
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

// The checker with every room's own blocks. Sharding rules are the checker's: it sees the whole
// file.
config::FileChecker make_checker() {
  config::FileChecker checker;
  checker.block("parallel", [](const config::Node& block, config::Problems& problems) {
    parallel::parse_parallel(block, problems);
  });
  checker.block("dataloader", [](const config::Node& block, config::Problems& problems) {
    data::check_dataloader_block(block, {}, problems);
  });
  return checker;
}

int check(const Arguments& arguments) {
  const config::LoadOptions options = load_options(arguments);
  std::optional<config::FileKind> kind;
  if (!arguments.kind.empty()) kind = config::kind_from_name(arguments.kind);
  config::FileChecker checker = make_checker();
  config::Problems problems;
  const config::Node root = config::load_checked(options, kind, checker, problems);
  const int code = report(problems, arguments.quiet);
  if (code == 0 && !arguments.quiet) {
    const auto seen = kind ? kind : config::detect_kind(options.files, root);
    std::cout << options.files[0].string() << ": ok (" << (seen ? config::kind_name(*seen) : "any")
              << " config)\n";
  }
  return code;
}

int show(const Arguments& arguments) {
  config::Problems problems;
  const config::Node root = config::load(load_options(arguments), problems);
  const int code = report(problems, arguments.quiet);
  if (code != 0) return code;
  if (arguments.json)
    std::cout << config::to_json(root).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  else
    std::cout << config::to_yaml(root);
  return code;
}

}  // namespace

int run_config(int argc, char** argv) {
  CLI::App app{"Check or show config files", "tutti config"};
  app.require_subcommand(1);
  Arguments arguments;
  const auto add_common = [&](CLI::App* sub) {
    sub->add_option("FILE", arguments.words,
                    "config files, later ones laid over earlier ones, then overrides: a.b=c, "
                    "a.0.b=c, +new=1, ~gone")
        ->required()
        ->option_text("... [KEY=VALUE ...]");
    sub->add_flag("--quiet", arguments.quiet, "problems only");
  };
  CLI::App* check_command = app.add_subcommand("check", "find every problem; exit 0 or 2");
  add_common(check_command);
  check_command
      ->add_option("--kind", arguments.kind, "kind of file, when its name and keys do not tell")
      ->check(
          CLI::IsMember({"training", "inference", "metrics", "publication", "demo", "parallel"}));
  CLI::App* show_command = app.add_subcommand("show", "print the resolved config");
  add_common(show_command);
  show_command->add_flag("--json", arguments.json, "as JSON");
  CLI::App* reference_command = app.add_subcommand("reference", "print docs/config-reference.md");
  CLI11_PARSE(app, argc, argv);
  if (reference_command->parsed()) {
    std::cout << config::reference_markdown(data::dataloader_reference());
    return 0;
  }
  return check_command->parsed() ? check(arguments) : show(arguments);
}

}  // namespace tutti::apps
