// Loading the configs of a run and letting the experiment's names flow between them.
#include <fmt/format.h>

#include "tutti/config/config_files.h"
#include "tutti/config/merge.h"
#include "tutti/config/plugin.h"
#include "tutti/config/recipe_defaults.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/stage.h"
#include "tutti/systems/standard_checker.h"
#include "tutti/systems/training/training_model.h"
#include "tutti/trainer/registry.h"

namespace tutti::systems {
namespace {

using config::Node;

using config::ConfigFiles;

// Every key of every file, before anything is built, downloaded or submitted.
void check(const ConfigFiles& loaded, const Node& resolved, const Extensions& extensions,
           config::Problems& problems) {
  if (resolved.defined())
    extensions.checker.check(loaded.kind, resolved, config::referenced_keys(loaded.merged),
                             problems);
}

// Without a training config nobody else says which experiment is meant.
void require_experiment(const ConfigFiles& loaded, config::Problems& problems) {
  const Node& merged = loaded.merged;
  if (!merged.defined() || !config::is_recipe_default(merged["exp_tag"]) ||
      !config::is_recipe_default(merged["exp_dir"]))
    return;
  if (merged["inference_dir"].defined() && !config::is_recipe_default(merged["inference_dir"]))
    return;
  problems.add(merged["exp_tag"],
               fmt::format("the {} config does not say which experiment is meant",
                           config::kind_name(*loaded.kind)),
               "give --training_config as well, or add exp_tag or exp_dir");
}

// Copies `key` of a resolved config into one that comes later; says so when that changes what the
// file says.
void inherit(const Node& from, std::string_view key, const Extensions& extensions,
             ConfigFiles& to) {
  if (!from.defined() || !to.merged.defined() || from[key].is_null()) return;
  const Node current = to.merged[key];
  const bool written_by_user = !current.is_null() && !config::is_recipe_default(current);
  config::Problems ignored;  // the same ones are reported when the whole file is resolved
  const Node own = config::resolve(to, extensions.resolvers, ignored)[key];
  if (written_by_user && own.is_scalar() && own.raw() != from[key].raw())
    log::warning("{} config: {} is '{}' there; the training config's '{}' is used",
                 config::kind_name(*to.kind), key, own.raw(), from[key].raw());
  to.merged = config::with_key(to.merged, std::string(key), from[key]);
}

}  // namespace

Extensions::Extensions() : checker(standard_checker()) {}

Extensions load_extensions(const std::vector<std::filesystem::path>& files) {
  Extensions extensions;
  config::PluginRegistry registry(extensions.checker.catalogue(), extensions.resolvers);
  extensions.checker.offer(registry);
  registry.offer(stage_registry());
  registry.offer(model_registry());
  registry.offer(transform_registry());
  registry.offer(trainer::optimizer_registry());
  registry.offer(trainer::schedule_registry());
  registry.offer(trainer::callback_registry());
  registry.offer(trainer::logger_registry());
  config::Problems problems;
  for (const auto& file : files) {
    config::Problems unread;  // reported, with everything else, when the file is loaded to be used
    config::load_plugins(config::read_config_files({}, {file}, unread), extensions.checker,
                         registry, problems);
  }
  problems.throw_if_any();
  return extensions;
}

StageContext load_context(const ContextRequest& request, const Extensions& extensions) {
  using config::FileKind;
  config::Problems problems;
  ConfigFiles training = read_config_files(FileKind::kTraining, request.training, problems);
  ConfigFiles inference = read_config_files(FileKind::kInference, request.inference, problems);
  ConfigFiles metrics = read_config_files(FileKind::kMetrics, request.metrics, problems);
  ConfigFiles demo = read_config_files(FileKind::kDemo, request.demo, problems);
  const std::vector<ConfigFiles*> all = {&training, &inference, &metrics, &demo};
  config::apply_overrides(request.overrides, all, extensions.checker, extensions.resolvers,
                          problems);
  config::choose_parallel(request.parallel, all, problems);
  problems.throw_if_any();

  StageContext context;
  context.request = request;
  context.catalogue = std::make_shared<config::Catalogue>(extensions.checker.catalogue());
  context.training = config::resolve(training, extensions.resolvers, problems);
  for (ConfigFiles* later : {&inference, &metrics, &demo})
    for (const char* key : {"exp_tag", "exp_dir"})
      inherit(context.training, key, extensions, *later);
  inherit(context.training, "data_dir", extensions, inference);
  context.inference = config::resolve(inference, extensions.resolvers, problems);
  for (ConfigFiles* later : {&metrics, &demo})
    for (const char* key : {"exp_tag", "exp_dir"})
      inherit(context.inference, key, extensions, *later);
  inherit(context.inference, "inference_dir", extensions, metrics);
  context.metrics = config::resolve(metrics, extensions.resolvers, problems);
  context.demo = config::resolve(demo, extensions.resolvers, problems);
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
  if (!request.parallel.empty()) command.insert(command.end(), {"--parallel", request.parallel});
  if (request.force) command.emplace_back("--force");
  for (const auto& key : request.continue_with)
    command.insert(command.end(), {"--continue_with", key});
  for (const auto& override_text : request.overrides) command.push_back(override_text);
  return command;
}

}  // namespace tutti::systems
