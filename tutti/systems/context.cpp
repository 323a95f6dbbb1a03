// Loading the configs of a run and letting the experiment's names flow between them.
#include <fmt/format.h>

#include <set>

#include "tutti/config/load.h"
#include "tutti/config/merge.h"
#include "tutti/config/plugin.h"
#include "tutti/config/recipe_defaults.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/data/batching/settings.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/stage.h"
#include "tutti/systems/training_model.h"

namespace tutti::systems {
namespace {

using config::Node;

struct Loaded {
  config::FileKind kind = config::FileKind::kTraining;
  Node merged;
  std::string self_name;
};

// Workers and ranks may start in another folder, so a relative recipe_dir is taken from ours.
Node with_absolute_recipe(const Node& merged) {
  const Node recipe = merged["recipe_dir"];
  if (!recipe.is_scalar() || recipe.raw().find("${") != std::string::npos) return merged;
  const std::filesystem::path path = recipe.raw();
  if (path.is_absolute()) return merged;
  auto value = std::make_shared<config::Value>(*recipe.value());
  value->text = std::filesystem::absolute(path).lexically_normal().string();
  if (value->text.size() > 1 && value->text.back() == '/') value->text.pop_back();
  return config::with_key(merged, "recipe_dir", Node(value));
}

Loaded load_one(config::FileKind kind, const std::vector<std::filesystem::path>& files,
                config::Problems& problems) {
  Loaded loaded;
  loaded.kind = kind;
  if (files.empty()) return loaded;
  loaded.self_name = files[0].stem().string();
  loaded.merged =
      config::with_recipe_defaults(kind, config::load_merged({.files = files}, problems));
  return loaded;
}

// "++a.b=c" -> "a.b"
std::string path_of(std::string text) {
  text.erase(0, text.find_first_not_of("+~"));
  return text.substr(0, text.find('='));
}

// An override belongs to every config that has its key; one that none has is new (or a slip) and
// goes to the first config given.
void apply_overrides(const std::vector<std::string>& overrides, const std::vector<Loaded*>& configs,
                     config::Problems& problems) {
  for (const auto& text : overrides) {
    std::vector<Loaded*> targets;
    for (Loaded* config : configs)
      if (config->merged.defined() && config->merged.find(path_of(text)).defined())
        targets.push_back(config);
    for (std::size_t i = 0; targets.empty() && i < configs.size(); ++i)
      if (configs[i]->merged.defined()) targets.push_back(configs[i]);
    for (Loaded* config : targets)
      config->merged = Node(config::apply_override(config->merged.value(), text, problems));
  }
}

Node finish(const Loaded& loaded, const Extensions& extensions, config::Problems& problems) {
  if (!loaded.merged.defined()) return {};
  return config::resolve(loaded.merged, extensions.resolvers, loaded.self_name, problems);
}

// Every key of every file, before anything is built, downloaded or submitted.
void check(const Loaded& loaded, const Node& resolved, const Extensions& extensions,
           config::Problems& problems) {
  if (resolved.defined())
    extensions.checker.check(loaded.kind, resolved, config::referenced_keys(loaded.merged),
                             problems);
}

// Without a training config nobody else says which experiment is meant.
void require_experiment(const Loaded& loaded, config::Problems& problems) {
  const Node& merged = loaded.merged;
  if (!merged.defined() || !config::is_recipe_default(merged["exp_tag"]) ||
      !config::is_recipe_default(merged["exp_dir"]))
    return;
  if (merged["inference_dir"].defined() && !config::is_recipe_default(merged["inference_dir"]))
    return;
  problems.add(merged["exp_tag"],
               fmt::format("the {} config does not say which experiment is meant",
                           config::kind_name(loaded.kind)),
               "give --training_config as well, or add exp_tag or exp_dir");
}

// Copies `key` of a resolved config into one that comes later; says so when that changes what the
// file says.
void inherit(const Node& from, std::string_view key, const Extensions& extensions, Loaded& to) {
  if (!from.defined() || !to.merged.defined() || from[key].is_null()) return;
  const Node current = to.merged[key];
  const bool written_by_user = !current.is_null() && !config::is_recipe_default(current);
  config::Problems ignored;  // the same ones are reported when the whole file is resolved
  const Node own = finish(to, extensions, ignored)[key];
  if (written_by_user && own.is_scalar() && own.raw() != from[key].raw())
    log::warning("{} config: {} is '{}' there; the training config's '{}' is used",
                 config::kind_name(to.kind), key, own.raw(), from[key].raw());
  to.merged = config::with_key(to.merged, std::string(key), from[key]);
}

}  // namespace

Extensions::Extensions() {
  checker.block("parallel", [](const Node& block, config::Problems& problems) {
    parallel::parse_parallel(block, problems);
  });
  checker.block("dataloader", [](const Node& block, config::Problems& problems) {
    data::check_dataloader_block(block, {}, problems);
  });
}

Extensions load_extensions(const std::vector<std::filesystem::path>& files) {
  Extensions extensions;
  config::PluginHost host(extensions.checker.catalogue(), extensions.resolvers);
  host.offer("stages", stage_registry());
  host.offer("dataset builders", dataset_builder_registry());
  host.offer("models", model_registry());
  host.offer("transforms", transform_registry());
  std::set<std::string> loaded;
  config::Problems problems;
  for (const auto& file : files) {
    config::Problems unread;  // reported, with everything else, when the file is loaded to be used
    const Node plugins = config::load_merged({.files = {file}}, unread)["plugins"];
    for (const Node& plugin : plugins.elements())
      if (!plugin.is_scalar() || loaded.insert(plugin.raw()).second)
        config::load_plugins(config::Node(std::make_shared<config::Value>(config::Value{
                                 .kind = config::Kind::kList, .list = {plugin.value()}})),
                             host, problems);
  }
  problems.throw_if_any();
  return extensions;
}

StageContext load_context(const ContextRequest& request, const Extensions& extensions) {
  using config::FileKind;
  config::Problems problems;
  Loaded training = load_one(FileKind::kTraining, request.training, problems);
  Loaded inference = load_one(FileKind::kInference, request.inference, problems);
  Loaded metrics = load_one(FileKind::kMetrics, request.metrics, problems);
  Loaded demo = load_one(FileKind::kDemo, request.demo, problems);
  apply_overrides(request.overrides, {&training, &inference, &metrics, &demo}, problems);
  problems.throw_if_any();
  for (Loaded* loaded : {&training, &inference, &metrics, &demo})
    if (loaded->merged.defined()) loaded->merged = with_absolute_recipe(loaded->merged);

  StageContext context;
  context.request = request;
  context.training = finish(training, extensions, problems);
  for (Loaded* later : {&inference, &metrics, &demo})
    for (const char* key : {"exp_tag", "exp_dir"})
      inherit(context.training, key, extensions, *later);
  inherit(context.training, "data_dir", extensions, inference);
  context.inference = finish(inference, extensions, problems);
  for (Loaded* later : {&metrics, &demo})
    for (const char* key : {"exp_tag", "exp_dir"})
      inherit(context.inference, key, extensions, *later);
  inherit(context.inference, "inference_dir", extensions, metrics);
  context.metrics = finish(metrics, extensions, problems);
  context.demo = finish(demo, extensions, problems);
  if (!context.training.defined()) {
    require_experiment(inference, problems);
    if (!context.inference.defined()) require_experiment(metrics, problems);
  }
  check(training, context.training, extensions, problems);
  check(inference, context.inference, extensions, problems);
  check(metrics, context.metrics, extensions, problems);
  check(demo, context.demo, extensions, problems);
  for (const auto& warning : problems.sorted_warnings()) log::warning("{}", warning.describe());
  problems.throw_if_any();
  return context;
}

std::vector<std::string> stage_command(const std::string& stage, const ContextRequest& request) {
  const auto program = own_program().parent_path() / "tutti";
  std::vector<std::string> command = {program.string(), stage};
  const auto add = [&](const char* flag, const std::vector<std::filesystem::path>& files) {
    for (const auto& file : files) command.insert(command.end(), {flag, file.string()});
  };
  add("--training_config", request.training);
  add("--inference_config", request.inference);
  add("--metrics_config", request.metrics);
  add("--demo_config", request.demo);
  if (request.force) command.emplace_back("--force");
  for (const auto& key : request.continue_with)
    command.insert(command.end(), {"--continue_with", key});
  for (const auto& override_text : request.overrides) command.push_back(override_text);
  return command;
}

}  // namespace tutti::systems
