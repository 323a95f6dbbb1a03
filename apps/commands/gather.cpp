// tutti gather: results.jsonl from what the journals hold, whatever became of the run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/commands/folder_state.h"
#include "tutti/core/error.h"
#include "tutti/core/fingerprint.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::apps {

int run_gather(int argc, char** argv) {
  std::string folder;
  bool quiet = false;
  CLI::App app{
      "Write results.jsonl and failed.jsonl from what is done so far; items that are not done have "
      "\"status\":\"missing\" there.\n"
      "exit: 0 all items are done, 7 some failed, 85 some are missing",
      "tutti gather"};
  app.add_option("folder", folder, "the output folder")->required();
  app.add_flag("--quiet", quiet, "print nothing");
  app.footer(example("tutti gather exp/decoded"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  refuse_if_hidden(folder, "gather");
  parallel::ShortPatience scheduler;
  const Json state = folder_state(folder, &scheduler);
  if (state.contains("async") && is_over(state))
    parallel::settle_async(std::filesystem::absolute(folder), nullptr, scheduler);
  const Json manifest = parallel::read_manifest(folder);
  const auto first = manifest.value("first", std::uint64_t{0});
  const parallel::Indices indices =
      parallel::range(first, first + state.value("items", std::uint64_t{0}));
  const auto counts = parallel::write_results(
      folder, Fingerprint(manifest.at("fingerprint")).hash(), indices,
      parallel::make_item_of(item_names(folder, manifest), indices), nullptr);
  if (!quiet)
    std::printf("%s/results.jsonl: %llu ok, %llu failed, %llu missing\n", folder.c_str(),
                static_cast<unsigned long long>(counts.ok),
                static_cast<unsigned long long>(counts.failed),
                static_cast<unsigned long long>(counts.missing()));
  if (counts.missing() > 0) return static_cast<int>(ExitCode::kStoppedResumable);
  return static_cast<int>(counts.failed > 0 ? ExitCode::kItemsFailed : ExitCode::kDone);
}

}  // namespace tutti::apps
