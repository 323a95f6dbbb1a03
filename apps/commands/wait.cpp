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
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/run.h"

namespace tutti::apps {
namespace {

// The first of the failed items, with the first line of each one's story.
void name_failures(const std::filesystem::path& folder) {
  constexpr std::size_t kMost = 5;
  const auto path = folder / "failed.jsonl";
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return;
  const auto lines = split(std::string(trim(read_file(path))), '\n');
  for (std::size_t i = 0; i < std::min(kMost, lines.size()); ++i) {
    const Json failed = parse_json(lines[i], path.string());
    const std::string reason = failed.value("reason", "");
    std::fprintf(stderr, "item %s failed: %s\n", to_json_line(failed.value("item", Json())).c_str(),
                 reason.substr(0, reason.find('\n')).c_str());
  }
  if (lines.size() > kMost) std::fprintf(stderr, "and %zu more;", lines.size() - kMost);
  std::fprintf(stderr, "%sreasons are in %s\n", lines.size() > kMost ? " " : "", path.c_str());
}

}  // namespace

int run_wait(int argc, char** argv) {
  std::string folder;
  bool quiet = false;
  CLI::App app{
      "Wait for the run in an output folder.\n"
      "exit: 0 done, 7 some items failed, 85 stopped early (also by Ctrl-C, where map itself ends "
      "with 130) and resumable; of an asynchronous run the code of what ended it",
      "tutti wait"};
  app.add_option("folder", folder, "the output folder")->required();
  app.add_flag("--quiet", quiet, "print nothing");
  app.footer(example("tutti wait exp/decoded && tutti measure --config conf/metrics.yaml"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  FolderWatch watch;
  Json state = folder_activity(folder, watch);
  // A scheduler is asked only while no worker shows signs of life, and not too often. A long run is
  // looked at less often: the disk is the workers'.
  for (auto pause = std::chrono::milliseconds(50); !is_over(state);) {
    std::this_thread::sleep_for(pause);
    const bool queued = state.value("state", "") == "queued";
    pause =
        std::min(pause * (queued ? 20 : 11) / 10, std::chrono::milliseconds(queued ? 5000 : 1000));
    state = folder_activity(folder, watch);
  }
  state = folder_state(folder);
  if (state.contains("async")) {
    parallel::settle_async(std::filesystem::absolute(folder));
    state = folder_state(folder);
  }
  if (!quiet) std::printf("%s\n", describe_counts(folder, state).c_str());
  if (!quiet && state.value("failed", std::uint64_t{0}) > 0) name_failures(folder);
  return exit_code_of(state);
}

}  // namespace tutti::apps
