// Loading the configs of a run and letting the experiment's names flow between them.
#include <fmt/format.h>

#include <cstdlib>

#include "tutti/config/config_files.h"
#include "tutti/config/merge.h"
#include "tutti/config/plugin.h"
#include "tutti/config/recipe_defaults.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/launch/rank.h"
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

// Copies `key` of the resolved config of kind `giver` into one that comes later; says so when that changes what the
// file says.
void inherit(const Node& from, const char* giver, std::string_view key,
             const Extensions& extensions, ConfigFiles& to, config::Problems& problems) {
  if (!from.defined() || !to.merged.defined() || from[key].is_null()) return;
  const Node current = to.merged[key];
  const bool written_by_user = !current.is_null() && !config::is_recipe_default(current);
  config::Problems ignored;  // the same ones are reported when the whole file is resolved
  const Node own = config::resolve(to, extensions.resolvers, ignored)[key];
  if (written_by_user && own.is_scalar() && own.raw() != from[key].raw())
    problems.warn(current, fmt::format("'{}' is not used: the {} config says '{}'", own.raw(),
                                       giver, from[key].raw()));
  to.merged = config::with_key(to.merged, std::string(key), from[key]);
}

// By the process that a person started, or rank 0 of those a launcher did; not again by the processes they start.
void warn_once(const config::Problems& problems) {
  constexpr const char* kTold = "TUTTI_CONFIG_WARNED";
  if (std::getenv(kTold) != nullptr) return;
  if (launch::launched_rank(launch::current_environment()).value_or(0) == 0)
    for (const auto& warning : problems.sorted_warnings()) log::warning("{}", warning.describe());
  ::setenv(kTold, "1", 1);
}

}  // namespace

Extensions::Extensions() : checker(standard_checker()) { checker.set_loads_corpora(true); }

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
  // An exp_dir follows its exp_tag, and metrics go with inference: once is enough to say so.
  const std::size_t told = problems.warnings().size();
  const auto inherit_experiment = [&](const Node& from, const char* giver, ConfigFiles& later) {
    for (const char* key : {"exp_tag", "exp_dir"}) {
      config::Problems repeated;
      inherit(from, giver, key, extensions, later,
              problems.warnings().size() > told ? repeated : problems);
    }
  };
  for (ConfigFiles* later : {&inference, &metrics, &demo})
    inherit_experiment(context.training, "training", *later);
  inherit(context.training, "training", "data_dir", extensions, inference, problems);
  context.inference = config::resolve(inference, extensions.resolvers, problems);
  for (ConfigFiles* later : {&metrics, &demo})
    inherit_experiment(context.inference, "inference", *later);
  inherit(context.inference, "inference", "inference_dir", extensions, metrics, problems);
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
  warn_once(problems);
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
