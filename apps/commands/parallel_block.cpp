#include "apps/commands/parallel_block.h"

#include <algorithm>

#include "tutti/config/config_files.h"
#include "tutti/config/load.h"
#include "tutti/config/merge.h"
#include "tutti/core/log.h"
#include "tutti/parallel/registry.h"
#include "tutti/systems/standard_checker.h"

namespace tutti::apps {
namespace {

// As `config check` does. What the file's other blocks hold is not for the commands here.
void check_top_level(const config::ConfigFiles& files, const config::Node& root,
                     config::Problems& problems) {
  config::Problems all;
  systems::standard_checker().check(files.kind, root, config::referenced_keys(files.merged), all);
  for (const config::Problem& problem : all.sorted())
    if (problem.is_unknown_key && problem.key.find('.') == std::string::npos) problems.add(problem);
}

config::Node find_block(const std::vector<std::string>& files,
                        const std::vector<std::string>& overrides, const std::string& name,
                        config::Problems& problems) {
  const config::LoadOptions options{.files = {files.begin(), files.end()}, .overrides = overrides};
  // Of the plugins only the block's own matter here; those of stages may need more than this program has.
  config::ConfigFiles loaded = config::read_config_files({}, options.files, problems);
  if (!loaded.merged.defined())  // overrides alone
    loaded.merged =
        config::Node(std::make_shared<config::Value>(config::Value{.kind = config::Kind::kMap}));
  config::apply_overrides(options.overrides, {&loaded}, systems::standard_checker(),
                          options.resolvers, problems);
  config::choose_parallel(name, {&loaded}, problems);
  const config::Node root = config::resolve(loaded, options.resolvers, problems);
  check_top_level(loaded, root, problems);
  return root["parallel"];
}

}  // namespace

parallel::ParallelSettings read_parallel_block(const std::vector<std::string>& files,
                                               const std::vector<std::string>& overrides,
                                               const std::string& name, bool quiet) {
  config::Problems problems;
  config::Node block;
  if (!files.empty() || !overrides.empty() || !name.empty())
    block = find_block(files, overrides, name, problems);
  parallel::ParallelSettings settings = parallel::parse_parallel(block, problems);
  problems.throw_if_any();
  for (const auto& plugin : settings.plugins) parallel::Registry::load_plugin_library(plugin);
  if (!quiet)
    for (const config::Problem& warning : problems.sorted_warnings())
      log::warning("{}", warning.describe());
  return settings;
}

void part_overrides(std::vector<std::string>& files, std::vector<std::string>& overrides) {
  const auto first = std::stable_partition(
      files.begin(), files.end(), [](const auto& word) { return !config::is_override(word); });
  overrides.insert(overrides.end(), first, files.end());
  files.erase(first, files.end());
}

}  // namespace tutti::apps
