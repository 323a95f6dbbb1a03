// `tutti parallel script`: the job scripts and the submit commands a config would use.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/command.h"
#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/client.h"

namespace tutti::apps {
namespace {

// A file is a whole config with a `parallel:` block, or such a block itself.
config::Node parallel_block(const config::Node& root, const std::string& name) {
  if (!root[name].is_null()) return root[name];
  if (root["env"].defined()) return root;
  throw ConfigError("no '" + name + "' block in the config",
                    "add parallel: {env: slurm, n_workers: 4, options: {...}}");
}

}  // namespace

int run_parallel(int argc, char** argv) {
  CLI::App app{"Look at the parallel layer of a config"};
  app.require_subcommand(1);
  CLI::App* script =
      app.add_subcommand("script", "print the job scripts and submit commands; submits nothing");
  std::vector<std::string> files;
  std::vector<std::string> overrides;
  std::string block_name = "parallel";
  std::string run_folder = "RUN_FOLDER";
  bool json = false;
  bool quiet = false;
  script->add_option("--config", files, "config file; later ones merge over earlier ones")
      ->required()
      ->allow_extra_args(false);
  script->add_option("--block", block_name, "name of the block to read")->capture_default_str();
  script->add_option("--run_folder", run_folder, "the run folder to show in the scripts")
      ->capture_default_str();
  script->add_flag("--json", json, "one JSON object per submission");
  script->add_flag("--quiet", quiet, "no warnings");
  script->add_option("overrides", overrides, "key=value ...");
  CLI11_PARSE(app, argc, argv);

  const config::Node root =
      config::load({.files = {files.begin(), files.end()}, .overrides = overrides});
  config::Problems problems;
  const auto settings = parallel::parse_parallel(parallel_block(root, block_name), problems);
  problems.throw_if_any();
  if (!quiet)
    for (const auto& warning : problems.warnings()) log::warning("{}", warning.describe());
  parallel::WorkerLaunch launch;
  launch.run_folder = run_folder;
  launch.command = {own_program().string(), "worker", "--run", run_folder};
  const auto backend = parallel::make_backend(settings, launch, CommandRunner::system());
  const auto previews = backend->scripts(settings.n_workers);
  for (std::size_t i = 0; i < previews.size(); ++i) {
    if (json) {
      std::puts(to_json_line({{"script", previews[i].script},
                              {"submit_command", previews[i].submit_command}})
                    .c_str());
      continue;
    }
    std::printf("%s# submission %zu of %zu: %s\n", i == 0 ? "" : "\n", i + 1, previews.size(),
                previews[i].submit_command.c_str());
    std::fputs(previews[i].script.c_str(), stdout);
  }
  return 0;
}

}  // namespace tutti::apps
