// tutti map: a command per item, on any backend.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "apps/command.h"
#include "tutti/config/load.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/run/folder_run.h"
#include "tutti/parallel/worker/command_runner.h"

namespace tutti::apps {
namespace {

using namespace parallel;

struct MapArguments {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  std::string items;
  std::string output_dir;
  std::vector<std::string> command;
  bool async = false;
  bool quiet = false;
  bool json = false;
};

ParallelSettings read_settings(const MapArguments& arguments) {
  config::Problems problems;
  config::Node block;
  if (!arguments.config_files.empty() || !arguments.overrides.empty()) {
    config::LoadOptions load;
    for (const std::string& file : arguments.config_files) load.files.emplace_back(file);
    load.overrides = arguments.overrides;
    block = config::load(load)["parallel"];
  }
  ParallelSettings settings = parse_parallel(block, problems);
  problems.throw_if_any();
  for (const config::Problem& warning : problems.warnings()) log::warning("{}", warning.describe());
  settings.async = settings.async || arguments.async;
  return settings;
}

// The items, and where the workers find them: a copy in the output folder, so that nobody can
// change the list under a running job.
struct Items {
  std::vector<std::string> lines;  // empty: numbers
  std::uint64_t count = 0;
  std::string text;
};

Items read_item_list(const std::string& argument) {
  Items items;
  const auto [end, error] =
      std::from_chars(argument.data(), argument.data() + argument.size(), items.count);
  if (error == std::errc() && end == argument.data() + argument.size()) return items;
  items.text = read_file(argument);
  items.lines = read_items(argument);
  items.count = items.lines.size();
  return items;
}

// Submits and leaves; what there is to know later is in the folder.
int submit_and_leave(const MapArguments& arguments, const ParallelSettings& settings,
                     RunFolder& folder, const JobSpec& job, const Indices& indices,
                     const RunOptions& options, const std::filesystem::path& items_file) {
  AsyncOptions async;
  async.item_names.kind = items_file.empty() ? ItemNames::Kind::kNumber : ItemNames::Kind::kLine;
  async.item_names.file = items_file;
  const std::uint64_t left = wire::total_items(folder.remaining());
  const auto jobs = submit_async(folder, settings, job, indices, options, async);
  std::vector<std::string> ids;
  for (const JobStatus& one : jobs) ids.push_back(one.job_id);
  const std::string path = folder.path().string();
  if (arguments.json)
    std::printf("%s\n",
                Json{{"output_dir", path}, {"items", indices.size()}, {"left", left}, {"jobs", ids}}
                    .dump()
                    .c_str());
  if (!arguments.quiet)
    std::fprintf(stderr, "submitted %zu job%s (%s) for %llu items; follow with: tutti status %s\n",
                 ids.size(), ids.size() == 1 ? "" : "s", join(ids, " ").c_str(),
                 static_cast<unsigned long long>(left), path.c_str());
  return 0;
}

int run_items(const MapArguments& arguments, const ParallelSettings& settings, const Items& items) {
  Json fingerprint;
  fingerprint["command"] = arguments.command;
  fingerprint["items"] = {{"count", items.count}, {"crc32c", crc32c(items.text)}};
  const Indices indices = range(items.count);
  RunFolder folder(arguments.output_dir, fingerprint, indices, {.resume = settings.resume});
  std::filesystem::path items_file;
  if (!items.lines.empty()) {
    items_file = folder.path() / ".tutti" / "items.txt";
    write_file_atomic(items_file, items.text);
  }
  RunOptions options;
  options.progress = !arguments.quiet;
  options.handle_signals = true;
  options.item_of = [&](std::uint64_t index) {
    return Json(items.lines.empty() ? std::to_string(index) : items.lines.at(index));
  };
  const JobSpec job = command_job(arguments.command, items_file);
  if (settings.async && !folder.remaining().empty())
    return submit_and_leave(arguments, settings, folder, job, indices, options, items_file);
  std::unique_ptr<Client> client;
  const auto make_client = [&]() -> Client& {
    client = std::make_unique<Client>(settings, ClientOptions{.run_folder = folder.path()});
    return *client;
  };
  const FolderRunResult result = run_in_folder(folder, make_client, job, indices, options);
  if (arguments.json)
    std::printf("%s\n", Json{{"output_dir", folder.path().string()},
                             {"items", result.counts.total},
                             {"ok", result.counts.ok},
                             {"failed", result.counts.failed},
                             {"seconds", result.report.seconds}}
                            .dump()
                            .c_str());
  if (!arguments.quiet) std::fprintf(stderr, "%s\n", describe(result).c_str());
  if (result.counts.failed == 0) return static_cast<int>(ExitCode::kDone);
  std::fprintf(stderr, "%s\n",
               ("reasons are in " + (folder.path() / "failed.jsonl").string()).c_str());
  return static_cast<int>(ExitCode::kItemsFailed);
}

}  // namespace

int run_map(int argc, char** argv) {
  MapArguments arguments;
  // What follows "--" is the command, untouched.
  int own_argc = argc;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--") continue;
    own_argc = i;
    for (int k = i + 1; k < argc; ++k) arguments.command.emplace_back(argv[k]);
    break;
  }
  CLI::App app{
      "Run a command per item on any backend; stdout of each item becomes its result.\n"
      "usage: tutti map --config F [key=value...] --items FILE|N --output_dir D -- COMMAND with {} "
      "{index}"};
  app.add_option("--config", arguments.config_files, "config file(s) with a parallel: block")
      ->allow_extra_args(false);
  app.add_option("overrides", arguments.overrides, "key=value");
  app.add_option("--items", arguments.items,
                 "a file with one item per line, or a number N for 0..N-1")
      ->required();
  app.add_option("--output_dir", arguments.output_dir, "where results go; run again to resume")
      ->required();
  app.add_flag("--async", arguments.async,
               "submit and leave; the workers write the results themselves");
  app.add_flag("--quiet", arguments.quiet, "no progress, no summary");
  app.add_flag("--json", arguments.json, "a summary as JSON on stdout");
  CLI11_PARSE(app, own_argc, argv);
  if (arguments.command.empty())
    throw ConfigError("map: no command", "put it after --, as in: -- ./decode.sh {}");
  const ParallelSettings settings = read_settings(arguments);
  return run_items(arguments, settings, read_item_list(arguments.items));
}

}  // namespace tutti::apps
