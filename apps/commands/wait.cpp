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
      "with 130) and resumable, 4 another user's; of an asynchronous run the code of what ended it",
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
  state = folder_state(folder, &watch.scheduler);
  if (state.contains("async")) {
    parallel::settle_async(std::filesystem::absolute(folder), watch.scheduler);
    state = folder_state(folder, &watch.scheduler);
  }
  if (!quiet) std::printf("%s\n", describe_counts(folder, state).c_str());
  if (!quiet) print_failures(stderr, folder, state);
  if (!quiet && state.contains("async")) print_jobs(stderr, state);
  return exit_code_of(state);
}

}  // namespace tutti::apps
