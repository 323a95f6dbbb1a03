// tutti wait: until nobody works in a folder any more.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "apps/command.h"
#include "apps/commands/folder_state.h"

namespace tutti::apps {

int run_wait(int argc, char** argv) {
  std::string folder;
  bool quiet = false;
  CLI::App app{
      "Wait for the run in an output folder; exit 0 done, 7 some items failed, 85 stopped and "
      "resumable"};
  app.add_option("folder", folder, "the output folder")->required();
  app.add_flag("--quiet", quiet, "print nothing");
  CLI11_PARSE(app, argc, argv);
  Json state = folder_state(folder);
  while (state.contains("driver")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    state = folder_state(folder);
  }
  if (!quiet)
    std::printf("%s: %s, %llu of %llu items ok\n", folder.c_str(),
                state.value("state", "?").c_str(),
                static_cast<unsigned long long>(state.value("ok", std::uint64_t{0})),
                static_cast<unsigned long long>(state.value("items", std::uint64_t{0})));
  return exit_code_of(state);
}

}  // namespace tutti::apps
