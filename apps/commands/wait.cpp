// tutti wait: until nobody works in a folder any more.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/commands/folder_state.h"
#include "tutti/parallel/async/run.h"

namespace tutti::apps {

int run_wait(int argc, char** argv) {
  std::string folder;
  bool quiet = false;
  CLI::App app{
      "Wait for the run in an output folder.\n"
      "exit: 0 done, 7 some items failed, 85 stopped early (also by Ctrl-C, where map itself ends "
      "with 130) and resumable, 4 another user's; else the code of what ended it (6: no job was "
      "accepted)",
      "tutti wait"};
  app.add_option("folder", folder, "the output folder")->required();
  app.add_flag("--quiet", quiet, "print nothing");
  app.footer(example("tutti wait exp/decoded && tutti measure --config conf/metrics.yaml"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  refuse_if_hidden(folder, "wait for");
  FolderWatch watch;
  Json state = folder_activity(folder, watch);
  bool told = quiet;
  // A scheduler is asked only while no worker shows signs of life, and not too often. A long run is
  // looked at less often: the disk is the workers'.
  for (auto pause = std::chrono::milliseconds(50); !is_over(state);) {
    if (const std::string silence = about_silence(state); !silence.empty() && !told) {
      std::fprintf(stderr, "%s; still waiting\n", silence.c_str());
      told = true;
    }
    std::this_thread::sleep_for(pause);
    const bool queued = state.value("state", "") == "queued";
    pause =
        std::min(pause * (queued ? 20 : 11) / 10, std::chrono::milliseconds(queued ? 5000 : 1000));
    state = folder_activity(folder, watch);
  }
  if (state.contains("async"))
    parallel::settle_async(std::filesystem::absolute(folder), &watch.workers, watch.scheduler);
  state = folder_state(folder, watch);
  if (!quiet) std::printf("%s\n", describe_counts(folder, state).c_str());
  if (!quiet) print_failures(stderr, folder, state);
  if (const std::string reason = reason_of(state); !quiet && !reason.empty())
    std::fprintf(stderr, "reason: %s\n", reason.c_str());
  if (!quiet && state.contains("async")) print_jobs(stderr, state);
  if (!quiet) print_way_on(stderr, state);
  return exit_code_of(state);
}

}  // namespace tutti::apps
