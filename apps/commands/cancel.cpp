// tutti cancel: asks the driver of a folder to stop; the folder stays resumable.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "apps/command.h"
#include "apps/commands/folder_state.h"
#include "tutti/core/error.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/wire/network.h"

namespace tutti::apps {

int run_cancel(int argc, char** argv) {
  std::string folder;
  bool quiet = false;
  bool now = false;
  CLI::App app{"Stop the run in an output folder; it can be resumed"};
  app.add_option("folder", folder, "the output folder")->required();
  app.add_flag("--now", now, "do not let running items finish");
  app.add_flag("--quiet", quiet, "print nothing");
  CLI11_PARSE(app, argc, argv);
  Json state = folder_state(folder);
  // "died" too: what never came to work may still lie in the scheduler's hands.
  if (state.contains("async") && (!is_over(state) || state.value("state", "") == "died")) {
    parallel::cancel_async(std::filesystem::absolute(folder), now);
    if (!quiet)
      std::printf("%s: %s\n", folder.c_str(), folder_state(folder).value("state", "?").c_str());
    return 0;
  }
  if (!state.contains("driver")) {
    if (!quiet)
      std::printf("%s: nothing runs there (%s)\n", folder.c_str(),
                  state.value("state", "?").c_str());
    return 0;
  }
  const std::string host = state["driver"].value("host", "");
  if (host != parallel::host_name())
    throw CommError("the driver runs on " + host, "run tutti cancel there");
  const auto pid = static_cast<pid_t>(state["driver"].value("pid", 0L));
  for (int signals = 0; signals < (now ? 2 : 1); ++signals) ::kill(pid, SIGTERM);
  while (folder_state(folder).contains("driver"))
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  state = folder_state(folder);
  if (!quiet) std::printf("%s: %s\n", folder.c_str(), state.value("state", "?").c_str());
  return 0;
}

}  // namespace tutti::apps
