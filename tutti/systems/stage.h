// Stages: the steps from audio to a result, by name or number, in one canonical order.
//
//   StageContext context = load_context({.training = {"conf/training.yaml"}});
//   run_stages(select_stages({"train", "infer"}), context);
//
// A finished stage leaves a record with the fingerprint of its inputs; run again with the same
// inputs it says so and is skipped (`force` redoes it); with others it says what changed and runs.
// A stage that was interrupted has no record and is run again: it continues rather than repeats.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/config/check.h"
#include "tutti/config/node.h"
#include "tutti/config/plugin_kind.h"
#include "tutti/core/fingerprint.h"
#include "tutti/core/json.h"

namespace tutti::systems {

// Files of each kind (later ones merge over earlier ones), `key=value` overrides and the name of a parallel block
// (config/config_files.h says where each goes).
struct ContextRequest {
  std::vector<std::filesystem::path> training;
  std::vector<std::filesystem::path> inference;
  std::vector<std::filesystem::path> metrics;
  std::vector<std::filesystem::path> demo;
  std::vector<std::string> overrides;
  std::string parallel;  // empty: the files' own `parallel:`
  bool force = false;
  bool quiet = false;                      // warnings and errors only
  std::vector<std::string> continue_with;  // keys that may differ from what was trained before
};

// The resolved configs, missing ones empty. exp_tag and exp_dir flow from training to inference,
// metrics and demo; inference_dir from inference to metrics.
struct StageContext {
  config::Node training;
  config::Node inference;
  config::Node metrics;
  config::Node demo;
  ContextRequest request;  // what it was loaded from; force is in there
  // Names of components, the plugins' among them.
  std::shared_ptr<const config::Catalogue> catalogue;
  std::vector<std::string> command;  // argv, for the logs
  bool is_last = true;               // no other stage of this command follows
  bool makes_tokens = false;         // train_tokenizer of this command is still to come
  // Set by a stage that left its work to others (asynchronous decoding): it is not finished, and
  // the same command run later goes on with it. Null: nobody wants to know.
  bool* left_unfinished = nullptr;
  // Set by a stage that did its work but for some items, which it has named (exit code 7).
  bool* items_failed = nullptr;

  // A path of the first config that has the key; throws ConfigError when none has.
  std::filesystem::path folder(std::string_view key) const;
};

// What `plugins:` of config files added to this program beyond stages and dataset builders, which
// go to their registries. Load once per program, before stages are selected.
struct Extensions {
  Extensions();  // the standard components and every room's own checks
  config::FileChecker checker;
  config::Resolvers resolvers = config::Resolvers::standard();
};
// Throws ConfigError with the loader's words for a library that cannot be loaded.
Extensions load_extensions(const std::vector<std::filesystem::path>& files);

// Loads, lays the recipe defaults under (config/recipe_defaults.h), resolves and checks all files;
// throws ConfigError with every problem of all of them.
StageContext load_context(const ContextRequest& request, const Extensions& extensions = {});
// The command that runs one stage of the same configs in a process of its own.
std::vector<std::string> stage_command(const std::string& stage, const ContextRequest& request);

enum class Needs { kTraining, kInference, kMetrics, kDemo };

struct Stage {
  int number = 0;
  std::string name;
  std::string summary;
  Needs needs = Needs::kTraining;
  std::string folder_key;  // where its record and log go: "data_dir", "exp_dir", ...
  // What decides its output; none, or an empty one, means "always run".
  std::function<Fingerprint(const StageContext&)> inputs;
  std::function<void(const StageContext&)> run;
  // Throws if it cannot be run now; before its log is begun. May be empty.
  std::function<void(const StageContext&)> refuse = {};
  std::string after;  // a plugin's stage: the stage it follows; empty: the end
  // It makes nothing: when all inputs of now were good, others that were there do not matter.
  bool only_checks = false;
  // Files that are there when it is done: one that is gone makes it run. May be empty.
  std::function<std::vector<std::filesystem::path>(const StageContext&)> outputs = {};
};

// A plugin adds stages of its own, which get numbers of their own (10, 11, ...):
//
//   TUTTI_PLUGIN(registry) {
//     registry.add(systems::Stage{.name = "score", .summary = "...", .run = score, .after = "measure"});
//   }
using StageRegistry = std::vector<Stage>;
StageRegistry& stage_registry();

// In canonical order.
std::vector<Stage> all_stages();

// "all", names in any order; duplicates and order do not matter. ConfigError with a suggestion for
// an unknown name.
std::vector<Stage> select_stages(const std::vector<std::string>& names);
std::vector<Stage> select_stages(int first, int last);

// Runs them in order. Only the process that is rank 0 (or not a rank at all) runs stages other than
// train; the others return at once. False: all ran, and some items of a stage failed.
bool run_stages(const std::vector<Stage>& stages, const StageContext& context,
                bool dry_run = false);

// Gives files named by a plain --config to the kind the stages need; with stages of several kinds
// they are the training config.
void assign_config(const std::vector<Stage>& stages,
                   const std::vector<std::filesystem::path>& files, ContextRequest& request);

}  // namespace tutti::systems

template <>
struct tutti::config::PluginKind<tutti::systems::Stage> {
  using Registry = systems::StageRegistry;
  static void add(Registry& stages,
                  systems::Stage stage);  // throws ConfigError for a name that is taken
};
