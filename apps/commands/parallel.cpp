// `tutti parallel script`: the job scripts and the submit commands a config would use.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/commands/parallel_block.h"
#include "tutti/core/json.h"
#include "tutti/core/program.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/client.h"

namespace tutti::apps {

int run_parallel(int argc, char** argv) {
  CLI::App app{"Look at the parallel layer of a config", "tutti parallel"};
  app.footer(example(
      "tutti parallel script --config conf/parallel_slurm.yaml\n"
      "tutti parallel script --config conf/inference.yaml --parallel gpu parallel.n_workers=2"));
  app.require_subcommand(1);
  CLI::App* script =
      app.add_subcommand("script", "print the job scripts and submit commands; submits nothing");
  std::vector<std::string> files;
  std::vector<std::string> overrides;
  std::string block_name;
  std::string run_folder = "RUN_FOLDER";
  bool json = false;
  bool quiet = false;
  script->add_option("--config", files, "config files; later ones merge over earlier ones")
      ->required();
  script->add_option("--parallel,--block", block_name,
                     "name of the block to use: parallel_gpu, or just gpu");
  script->add_option("--run_folder", run_folder, "the run folder to show in the scripts")
      ->capture_default_str();
  script->add_flag("--json", json, "one JSON object per submission");
  script->add_flag("--quiet", quiet, "no warnings");
  script->add_option("overrides", overrides, "key=value ...");
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  part_overrides(files, overrides);

  const auto settings = read_parallel_block(files, overrides, block_name, quiet);
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
