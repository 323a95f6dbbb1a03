// tutti config check | show | reference
#include <unistd.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "tutti/config/check.h"
#include "tutti/config/config_files.h"
#include "tutti/config/gpu_count.h"
#include "tutti/config/merge.h"
#include "tutti/config/name_flow.h"
#include "tutti/config/plugin.h"
#include "tutti/config/recipe_defaults.h"
#include "tutti/config/reference.h"
#include "tutti/config/schemas/types.h"
#include "tutti/core/error.h"
#include "tutti/core/program.h"
#include "tutti/systems/input_files.h"
#include "tutti/systems/standard_checker.h"

namespace tutti::apps {
namespace {

struct Arguments {
  std::vector<std::string> words;     // files and overrides, as typed
  std::vector<std::string> training;  // whose names flow into the file, as in a run
  std::string kind;
  std::string parallel;
  bool quiet = false;
  bool json = false;
  bool no_files = false;  // config files alone; what they name need not be there
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

constexpr const char* kSibling = "tutti-run";

// The stages' program has what corpora need.
config::FileChecker own_checker() {
  config::FileChecker checker = systems::standard_checker();
  checker.set_loads_corpora(own_program().filename() == kSibling);
  return checker;
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

std::optional<config::FileKind> kind_asked(const Arguments& arguments) {
  if (arguments.kind.empty()) return {};
  return config::kind_from_name(arguments.kind);
}

// Files of one kind, and overlays, are laid over each other; those of several kinds are configs of their own.
bool are_several(const Arguments& arguments, const config::LoadOptions& options) {
  if (!arguments.kind.empty()) return false;
  std::set<config::FileKind> kinds;
  for (const auto& file : options.files) {
    config::Problems unread;  // reported when the file is loaded to be checked
    const auto kind = config::detect_kind({file}, config::load_merged({.files = {file}}, unread));
    if (kind && *kind != config::FileKind::kParallel) kinds.insert(*kind);
  }
  return kinds.size() > 1;
}

struct Loaded {
  config::ConfigFiles files;
  config::Node root;      // resolved
  config::Node training;  // that of --training_config
};

// As a run with --training_config sees the file: names flow, and an override goes to those that know its key.
Loaded load_beside_training(const Arguments& arguments, const config::LoadOptions& options,
                            config::FileChecker& checker, config::Problems& problems) {
  using config::FileKind;
  config::ConfigFiles own =
      config::read_config_files(kind_asked(arguments), options.files, problems);
  if (own.kind != FileKind::kInference && own.kind != FileKind::kMetrics &&
      own.kind != FileKind::kDemo)
    throw ConfigError(fmt::format("--training_config: {} is no inference, metrics or demo config",
                                  options.files[0].string()),
                      "leave it out, or say what the file is with --kind");
  config::ExperimentFiles files;
  files.training = config::read_config_files(
      FileKind::kTraining, {arguments.training.begin(), arguments.training.end()}, problems);
  config::ConfigFiles& place = own.kind == FileKind::kInference ? files.inference
                               : own.kind == FileKind::kMetrics ? files.metrics
                                                                : files.demo;
  place = std::move(own);
  config::Resolvers resolvers = options.resolvers;
  config::PluginRegistry registry(checker.catalogue(), resolvers);
  checker.offer(registry);
  for (const config::ConfigFiles* each : {&files.training, &place})
    config::load_plugins(*each, checker, registry, problems);
  config::apply_overrides(options.overrides, files.all(), checker, resolvers, problems);
  config::choose_parallel(arguments.parallel, files.all(), problems);
  const auto configs = config::resolve_together(files, resolvers, problems);
  const config::Node root = place.kind == FileKind::kInference ? configs.inference
                            : place.kind == FileKind::kMetrics ? configs.metrics
                                                               : configs.demo;
  return {std::move(place), root, configs.training};
}

Loaded load(const Arguments& arguments, const config::LoadOptions& options,
            config::FileChecker& checker, config::Problems& problems) {
  if (!arguments.training.empty())
    return load_beside_training(arguments, options, checker, problems);
  auto [files, root] =
      config::load_config(options, kind_asked(arguments), arguments.parallel, checker, problems);
  return {std::move(files), std::move(root), {}};
}

// A login node has none, or fewer than where it will run, so it is no mistake.
void warn_of_too_few_gpus(const config::Node& training, config::Problems& problems) {
  const config::Node trainer = training["trainer"], wanted = trainer["accelerator"];
  const std::string name = wanted.value_or<std::string>("auto");
  const int gpus = config::count_visible_gpus();
  if ((name == "gpu" || name == "cuda") && gpus == 0)
    problems.warn(wanted, fmt::format("got {}, and no GPU is visible on this machine", name),
                  "check it where it will run, or use accelerator: auto");
  const config::Node own = trainer["devices"];
  const config::Node devices =
      own.is_null() || config::is_recipe_default(own) ? training["num_device"] : own;
  config::Devices asked;
  std::string expected;  // told by the trainer's schema
  if (gpus == 0 || name == "cpu" || devices.is_null() || !read(devices, asked, expected)) return;
  const int ranks = asked.number().value_or(0);
  if (ranks > gpus)
    problems.warn(devices,
                  fmt::format("got {}, and {} GPU(s) are visible on this machine", ranks, gpus),
                  fmt::format("check it where it will run, or set {}: {}", devices.path(), gpus));
}

void check_loaded(const config::FileChecker& checker, const config::ConfigFiles& files,
                  const config::Node& root, bool no_files, config::Problems& problems) {
  checker.check(files.kind, root, config::referenced_keys(files.merged), problems);
  if (no_files || !files.kind) return;
  systems::check_input_files(*files.kind, root, problems);
  if (files.kind == config::FileKind::kTraining) warn_of_too_few_gpus(root, problems);
}

void say_ok(const std::filesystem::path& file, const std::optional<config::FileKind>& kind) {
  std::cout << file.string() << ": ok (" << (kind ? config::kind_name(*kind) : "any")
            << " config)\n";
}

// Each for itself; an override goes to those whose schema knows the key.
int check_each(const Arguments& arguments, const config::LoadOptions& options) {
  config::FileChecker checker = own_checker();
  config::Problems problems;
  std::vector<config::ConfigFiles> loaded;
  config::Resolvers resolvers = options.resolvers;
  config::PluginRegistry registry(checker.catalogue(), resolvers);
  checker.offer(registry);
  for (const auto& file : options.files) {
    loaded.push_back(config::read_config_files({}, {file}, problems));
    config::load_plugins(loaded.back(), checker, registry, problems);
  }
  std::vector<config::ConfigFiles*> all;
  for (auto& each : loaded) all.push_back(&each);
  config::apply_overrides(options.overrides, all, checker, resolvers, problems);
  config::choose_parallel(arguments.parallel, all, problems);
  std::vector<bool> fine;
  for (const auto& each : loaded) {
    const std::size_t before = problems.sorted().size();
    check_loaded(checker, each, config::resolve(each, resolvers, problems), arguments.no_files,
                 problems);
    fine.push_back(problems.sorted().size() == before);
  }
  const int code = report(problems, arguments.quiet);
  for (std::size_t i = 0; i < loaded.size(); ++i)
    if (fine[i] && !arguments.quiet) say_ok(options.files[i], loaded[i].kind);
  return code;
}

int check(const Arguments& arguments) {
  const config::LoadOptions options = load_options(arguments);
  if (arguments.training.empty() && are_several(arguments, options))
    return check_each(arguments, options);
  config::FileChecker checker = own_checker();
  config::Problems problems;
  const Loaded loaded = load(arguments, options, checker, problems);
  check_loaded(checker, loaded.files, loaded.root, arguments.no_files, problems);
  if (!arguments.no_files && loaded.files.kind == config::FileKind::kInference)
    systems::check_average_name(loaded.training, loaded.root, problems);
  const int code = report(problems, arguments.quiet);
  if (code == 0 && !arguments.quiet) say_ok(options.files[0], loaded.files.kind);
  return code;
}

int show(const Arguments& arguments) {
  const config::LoadOptions options = load_options(arguments);
  if (are_several(arguments, options))
    throw ConfigError("the files are of several kinds, which have no common config",
                      "show them one after another");
  config::Problems problems;
  config::FileChecker checker = own_checker();
  const auto [files, root, training] = load(arguments, options, checker, problems);
  const bool follows_training =
      files.kind == config::FileKind::kInference || files.kind == config::FileKind::kMetrics;
  if (arguments.training.empty() && follows_training && config::lacks_experiment(files))
    problems.warn({files.merged.mark(), "exp_tag", "nothing here says which experiment is meant",
                   "add --training_config FILE, as a run does"});
  const int code = report(problems, arguments.quiet);
  if (code != 0) return code;
  if (arguments.json)
    std::cout << config::to_json(root).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  else
    std::cout << config::to_yaml(root);
  return code;
}

// With the corpora that come with Tutti, where this program can load them.
std::string reference() {
  config::FileChecker checker = own_checker();
  config::Resolvers resolvers = config::Resolvers::standard();
  config::PluginRegistry registry(checker.catalogue(), resolvers);
  checker.offer(registry);
  if (checker.loads_corpora())
    for (const auto& name : config::shipped_plugins())
      config::load_plugin(config::shipped_plugin(name).string(), registry);
  return config::reference_markdown(checker.catalogue(), systems::reference_tables());
}

// Where the stages' program was not built it returns.
void go_to_sibling(char** argv) {
  if (own_program().filename() != kSibling)
    ::execv((own_program().parent_path() / kSibling).c_str(), argv);
}

// A recipe's plugin uses symbols of the stages' program, so files that name plugins are checked there. Returns when
// none does.
void go_where_plugins_load(const Arguments& arguments, char** argv) {
  config::Problems unread;  // the same ones come again when the files are loaded to be checked
  const auto go_if_any = [&](const std::optional<config::FileKind>& kind,
                             const std::vector<std::filesystem::path>& names) {
    const auto files = config::read_config_files(kind, names, unread);
    if (!config::plugin_lists(files, systems::standard_checker(), config::Resolvers::standard())
             .empty())
      go_to_sibling(argv);
  };
  go_if_any(kind_asked(arguments), load_options(arguments).files);
  if (!arguments.training.empty())
    go_if_any(config::FileKind::kTraining, {arguments.training.begin(), arguments.training.end()});
}

}  // namespace

int run_config(int argc, char** argv) {
  CLI::App app{"Check or show config files", "tutti config"};
  app.footer(
      example("tutti config check conf/training.yaml num_device=4\n"
              "tutti config show conf/inference.yaml --training_config conf/training.yaml"));
  app.require_subcommand(1);
  Arguments arguments;
  const auto add_common = [&](CLI::App* sub) {
    sub->add_option("FILE", arguments.words,
                    "config files, later ones laid over earlier ones (those of several kinds: each "
                    "for itself), then overrides: a.b=c, a.0.b=c, +new=1, ~gone")
        ->required()
        ->option_text("... [KEY=VALUE ...]");
    sub->add_option("--kind", arguments.kind, "kind of file, when its name and keys do not tell")
        ->check(
            CLI::IsMember({"training", "inference", "metrics", "publication", "demo", "parallel"}));
    sub->add_option("--training_config", arguments.training,
                    "of an inference, metrics or demo file: the training config whose experiment "
                    "it belongs to, as for tutti run")
        ->allow_extra_args(false);
    sub->add_option("--parallel", arguments.parallel, "name of the parallel block to use");
    sub->add_flag("--quiet", arguments.quiet, "problems only");
  };
  CLI::App* check_command = app.add_subcommand("check", "find every problem; exit 0 or 2");
  add_common(check_command);
  check_command->footer(
      example("tutti config check conf/training.yaml num_device=4\n"
              "tutti config check conf/metrics.yaml --training_config conf/training.yaml"));
  check_command->add_flag("--no_files", arguments.no_files,
                          "do not look whether the data and weights it names are here");
  CLI::App* show_command = app.add_subcommand("show", "print the config as the programs see it");
  add_common(show_command);
  show_command->footer(
      example("tutti config show conf/inference.yaml --training_config conf/training.yaml"));
  show_command->add_flag("--json", arguments.json, "as JSON");
  CLI::App* reference_command = app.add_subcommand("reference", "print docs/config-reference.md");
  reference_command->footer(example("tutti config reference"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  if (reference_command->parsed()) {
    go_to_sibling(argv);
    std::cout << reference();
    return 0;
  }
  go_where_plugins_load(arguments, argv);
  return check_command->parsed() ? check(arguments) : show(arguments);
}

}  // namespace tutti::apps
