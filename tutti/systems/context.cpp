// Loading the configs of a run and letting the experiment's names flow between them.
#include <fmt/format.h>

#include <cstdlib>

#include "tutti/config/config_files.h"
#include "tutti/config/name_flow.h"
#include "tutti/config/plugin.h"
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
  if (config::lacks_experiment(loaded))
    problems.add(loaded.merged["exp_tag"],
                 fmt::format("the {} config does not say which experiment is meant",
                             config::kind_name(*loaded.kind)),
                 "give --training_config as well, or add exp_tag or exp_dir");
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
  config::ExperimentFiles files{
      .training = read_config_files(FileKind::kTraining, request.training, problems),
      .inference = read_config_files(FileKind::kInference, request.inference, problems),
      .metrics = read_config_files(FileKind::kMetrics, request.metrics, problems),
      .demo = read_config_files(FileKind::kDemo, request.demo, problems)};
  config::apply_overrides(request.overrides, files.all(), extensions.checker, extensions.resolvers,
                          problems);
  config::choose_parallel(request.parallel, files.all(), problems);
  problems.throw_if_any();

  StageContext context;
  context.request = request;
  context.catalogue = std::make_shared<config::Catalogue>(extensions.checker.catalogue());
  const auto configs = config::resolve_together(files, extensions.resolvers, problems);
  context.training = configs.training;
  context.inference = configs.inference;
  context.metrics = configs.metrics;
  context.demo = configs.demo;
  if (!context.training.defined()) {
    require_experiment(files.inference, problems);
    if (!context.inference.defined()) require_experiment(files.metrics, problems);
  }
  check(files.training, context.training, extensions, problems);
  check(files.inference, context.inference, extensions, problems);
  check(files.metrics, context.metrics, extensions, problems);
  check(files.demo, context.demo, extensions, problems);
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
