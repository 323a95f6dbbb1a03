// The files of one kind as a program uses them: merged, recipe defaults under them, overrides over them.
//
//   ConfigFiles training = read_config_files(FileKind::kTraining, {"conf/training.yaml"}, problems);
//   ConfigFiles inference = read_config_files(FileKind::kInference, {"conf/inference.yaml"}, problems);
//   apply_overrides({"model.device=cuda", "training:seed=7"}, {&training, &inference}, checker, resolvers, problems);
//   choose_parallel("parallel_gpu", {&training, &inference}, problems);
//   Node config = resolve(training, resolvers, problems);
//
// `config check`, `config show` and the stages all load through here, so what one shows is what another sees.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/config/check.h"

namespace tutti::config {

struct ConfigFiles {
  std::optional<FileKind> kind;
  Node merged;            // undefined: no file of this kind was given
  std::string self_name;  // what `${self_name:}` gives
};

// Without a kind it is told by the name of the first file, else by the keys.
ConfigFiles read_config_files(std::optional<FileKind> kind,
                              const std::vector<std::filesystem::path>& files, Problems& problems);

// Each override goes to every file that has its key or whose schema knows it; `inference:a.b=c` addresses one.
// A key that the schema knows needs no `+`. One that nobody knows is a problem, never ignored.
void apply_overrides(const std::vector<std::string>& overrides,
                     const std::vector<ConfigFiles*>& files, const FileChecker& checker,
                     const Resolvers& resolvers, Problems& problems);

// Makes the block of this name (`parallel_gpu`, or just `gpu`) the `parallel:` of every file that has it. With an
// empty name only `parallel: NAME` in the files chooses; a named block that nothing chooses is warned about.
void choose_parallel(const std::string& name, const std::vector<ConfigFiles*>& files,
                     Problems& problems);

// Interpolates. A relative recipe_dir is taken from the working folder, because workers and ranks may start in another.
Node resolve(const ConfigFiles& files, const Resolvers& resolvers, Problems& problems);

// Every list of plugins that the files mean: `plugins:`, that of each parallel block, and those of the corpora that
// come with Tutti and that datasets name.
std::vector<Node> plugin_lists(const ConfigFiles& files, const FileChecker& checker,
                               const Resolvers& resolvers);
// Loads them, without the corpora where the program has not what they need.
void load_plugins(const ConfigFiles& files, const FileChecker& checker, PluginRegistry& registry,
                  Problems& problems);

// All of it for files of one kind, with their plugins, which may add to the checker's catalogue.
struct LoadedConfig {
  ConfigFiles files;
  Node root;  // resolved
};
LoadedConfig load_config(const LoadOptions& options, std::optional<FileKind> kind,
                         const std::string& parallel, FileChecker& checker, Problems& problems);

}  // namespace tutti::config
