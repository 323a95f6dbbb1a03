// tutti map: a command per item, on any backend.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/commands/folder_state.h"
#include "apps/commands/item_times.h"
#include "apps/commands/map_items.h"
#include "apps/commands/ordered_output.h"
#include "apps/commands/parallel_block.h"
#include "tutti/core/error.h"
#include "tutti/core/held_signals.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/core/threads.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/backends/local.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/run/folder_run.h"
#include "tutti/parallel/worker/command_runner.h"
#include "tutti/parallel/worker/command_template.h"

namespace tutti::apps {
namespace {

using namespace parallel;

constexpr char kExamples[] = R"(
The item stands for {} in the command; {.} is without its extension, {/} its last part, {//} its
folder, {/.} last part without extension, {index} its number. One word with blanks is a shell line,
in which {} may stand inside of any quotes: items never become shell text.

example:
  tutti map -j 8 ::: a.wav b.wav -- sox {} {.}.flac
  find . -name '*.wav' | tutti map -- soxi -D {}
  find . -name '*.wav' -print0 | tutti map -0 -- soxi -D {}
  tutti map --items 100 -- 'echo {} | sha1sum'
  tutti map --items wavs.txt --output_dir out -- ./features.sh {} {index}
  tutti map --items all_wavs.txt --append --output_dir out -- ./features.sh {} {index}
  tutti map --config slurm.yaml parallel.n_workers=64 --items wavs.txt --output_dir out -- ./decode.sh {}

Without --output_dir the outputs come to stdout in the order of the items and nothing is left behind.
With it the run can be interrupted and goes on when the same command is given again; results are in
results.jsonl, failed items with the reason in failed.jsonl.

exit: 0 done, 7 some items failed, 85 stopped by SIGTERM, 130 by Ctrl-C; both finish what runs and go on
when the same command is given again. What comes before the first item (config, files, scheduler) has
codes of its own: docs/commands.md.)";

constexpr char kCommandGoes[] =
    "put the command after --, as in: tutti map --items wavs.txt -- wc -c {}";

std::string without_fix(const Error& error) {
  const std::string message = error.what();
  return message.substr(0, message.find("\n  fix: "));
}

struct MapArguments {
  std::vector<std::string> config_files;
  std::vector<std::string> overrides;
  std::string parallel;
  std::string items;
  std::vector<std::string> listed;  // after :::
  bool has_list = false;
  bool nul_separated = false;
  std::string output_dir;
  std::vector<std::string> command;
  int jobs = 0;
  bool force = false;
  bool append = false;
  bool async = false;
  bool quiet = false;
  bool json = false;
  std::string times;
};

ParallelSettings read_settings(const MapArguments& arguments) {
  ParallelSettings settings = read_parallel_block(arguments.config_files, arguments.overrides,
                                                  arguments.parallel, arguments.quiet);
  const bool says_how_many =
      std::any_of(arguments.overrides.begin(), arguments.overrides.end(),
                  [](const auto& text) { return text.find("n_workers=") != std::string::npos; });
  if (arguments.jobs > 0)
    settings.n_workers = arguments.jobs;
  else if (arguments.config_files.empty() && settings.env == "local" && !says_how_many)
    settings.n_workers = usable_cpus();
  settings.async = settings.async || arguments.async;
  settings.resume = settings.resume && !arguments.force;
  return settings;
}

MapItems read_item_list(const MapArguments& arguments) {
  if (arguments.has_list && !arguments.items.empty())
    throw ConfigError("map: items both after ::: and in --items", "give one of them");
  if (arguments.has_list) return MapItems::list(arguments.listed);
  const std::string& given = arguments.items;
  if (given.empty()) {
    if (::isatty(STDIN_FILENO) == 1)
      throw ConfigError("map: no items",
                        "give them after ::: , in --items FILE|N, or through a pipe");
    return MapItems::standard_input(arguments.nul_separated);
  }
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), count);
  if (error == std::errc() && end == given.data() + given.size()) {
    std::error_code none;
    if (!arguments.quiet && std::filesystem::exists(given, none))
      log::warning(
          "--items {0} is a number: {0} items; for the file of that name say --items ./{0}", given);
    return MapItems::numbers(count);
  }
  return MapItems::file(given, arguments.nul_separated);
}

// Submits and leaves; what there is to know later is in the folder.
int submit_and_leave(const MapArguments& arguments, const ParallelSettings& settings,
                     RunFolder& folder, const JobSpec& job, const Indices& indices,
                     const RunOptions& options, const std::filesystem::path& items_file) {
  AsyncOptions async;
  async.item_names.kind = items_file.empty() ? ItemNames::Kind::kNumber : ItemNames::Kind::kLine;
  async.item_names.file = items_file;
  const std::uint64_t left = wire::total_items(folder.remaining());
  // At once: the scheduler is asked about them next, and may be slow to answer.
  async.on_submitted = [&](const std::vector<JobStatus>& jobs) {
    std::vector<std::string> ids;
    for (const JobStatus& one : jobs) ids.push_back(one.job_id);
    const std::string path = folder.path().string();
    if (arguments.json)
      std::printf(
          "%s\n",
          to_json_line(
              Json{{"output_dir", path}, {"items", indices.size()}, {"left", left}, {"jobs", ids}})
              .c_str());
    std::fflush(stdout);
    if (!arguments.quiet)
      std::fprintf(stderr,
                   "submitted %zu job%s (%s) for %llu items; follow with: tutti status %s\n",
                   ids.size(), ids.size() == 1 ? "" : "s", join(ids, " ").c_str(),
                   static_cast<unsigned long long>(left), path.c_str());
  };
  submit_async(folder, settings, job, indices, options, async);
  return 0;
}

JobSpec map_job(const MapArguments& arguments, const ParallelSettings& settings,
                const MapItems& items, const std::filesystem::path& items_file) {
  const bool may_be_blind = settings.env == "ssh" && !settings.async;  // no folder need be shared
  return command_job(arguments.command, items_file, may_be_blind ? items.to_ship() : Json());
}

RunOptions run_options(const MapArguments& arguments, const MapItems& items) {
  RunOptions options;
  options.progress = !arguments.quiet;
  options.handle_signals = true;
  options.item_of = [&items](std::uint64_t index) { return items.name(index); };
  if (!arguments.times.empty())
    options.on_outcome = [times = std::make_shared<ItemTimes>(arguments.times)](
                             const Outcome& outcome) { times->add(outcome); };
  return options;
}

// What the output folder holds is a run of the first of these items: its fingerprint. Else null.
Json shorter_run(const std::filesystem::path& folder, const MapItems& items,
                 const Json& fingerprint) {
  const Json manifest = read_manifest(folder);
  if (!manifest.is_object()) return nullptr;
  const Json there = manifest.value("fingerprint", Json::object());
  if (!there.contains("items") || !there["items"].is_object()) return nullptr;
  const auto count = there["items"].value("count", std::uint64_t{0});
  if (count >= items.size()) return nullptr;
  Json shorter = fingerprint;
  shorter["items"] = items.fingerprint_of_first(count);
  return shorter == there ? shorter : Json();
}

// The number of items in a run of the same command on another list; empty: there is none in the folder.
std::optional<std::uint64_t> size_of_other_list(const std::filesystem::path& folder,
                                                const Json& fingerprint) {
  const Json manifest = read_manifest(folder);
  if (!manifest.is_object()) return std::nullopt;
  const Json there = manifest.value("fingerprint", Json::object());
  const Json items = there.value("items", Json());
  if (!items.is_object() || items == fingerprint.at("items") ||
      there.value("command", Json()) != fingerprint.at("command"))
    return std::nullopt;
  return items.value("count", std::uint64_t{0});
}

// Before a checksum does, which cannot say what is different. With --append the folder's list would be lost.
void refuse_other_list(const MapArguments& arguments, const MapItems& items,
                       const Json& fingerprint) {
  const auto count = size_of_other_list(arguments.output_dir, fingerprint);
  if (!count) return;
  const std::string difference = items.difference_to(arguments.output_dir, *count);
  if (!arguments.append)
    throw ConfigError(fmt::format("{} holds the results of another list of items: {}",
                                  arguments.output_dir, difference),
                      "use another folder, or --force to start over");
  throw ConfigError(
      fmt::format("map: --append wants the whole list: the {} items given do not begin with the {} "
                  "of {}: {}",
                  items.size(), *count, arguments.output_dir, difference),
      "give the old items and then the new ones: cat old.txt new.txt > all.txt, and --items "
      "all.txt; what is done is kept");
}

// For programs. `reason`: why it stopped before its end.
void print_summary(const std::filesystem::path& folder, const std::string& reason,
                   std::optional<double> seconds) {
  std::map<std::uint64_t, std::string> reasons;
  const FolderCounts counts = count_items(folder, &reasons);
  Json summary{{"output_dir", folder.string()},
               {"items", counts.total},
               {"ok", counts.ok},
               {"failed", counts.failed}};
  if (seconds) summary["seconds"] = *seconds;
  if (!reason.empty()) summary["reason"] = reason;
  if (counts.failed > 0) summary["failures"] = failed_items(folder, reasons);
  std::printf("%s\n", to_json_line(summary).c_str());
}

int run_in_output_dir(const MapArguments& arguments, const ParallelSettings& settings,
                      const MapItems& items) {
  Json fingerprint;
  for (const std::string& word : arguments.command)
    fingerprint["command"].push_back(bytes_to_json(word));
  fingerprint["items"] = items.fingerprint();
  const Indices indices = range(items.size());
  const Json shorter =
      settings.resume ? shorter_run(arguments.output_dir, items, fingerprint) : Json();
  if (shorter.is_object()) {
    const auto count = shorter["items"]["count"].get<std::uint64_t>();
    if (!arguments.append)
      throw ConfigError(
          fmt::format("{} holds the results of another run: of the first {} of these {} items",
                      arguments.output_dir, count, items.size()),
          "--append keeps them and runs the rest; or use another folder, or --force to start over");
    // Takes over what asynchronous workers have done.
    const RunFolder old(arguments.output_dir, shorter, range(count), {});
  } else if (settings.resume) {
    refuse_other_list(arguments, items, fingerprint);
  }
  RunFolder folder(arguments.output_dir, fingerprint, indices,
                   {.resume = settings.resume, .grows_from = shorter});
  if (const std::string elsewhere = folder.began_elsewhere();
      !elsewhere.empty() && !folder.remaining().empty())
    log::warning(
        "{} was begun in {}: relative names in the command and in the items mean other files here",
        arguments.output_dir, elsewhere);
  const std::filesystem::path items_file = items.write(folder.path());
  const RunOptions options = run_options(arguments, items);
  const JobSpec job = map_job(arguments, settings, items, items_file);
  if (settings.async && !folder.remaining().empty())
    return submit_and_leave(arguments, settings, folder, job, indices, options, items_file);
  std::unique_ptr<Client> client;
  const auto make_client = [&]() -> Client& {
    client = std::make_unique<Client>(settings, ClientOptions{.run_folder = folder.path()});
    return *client;
  };
  FolderRunResult result;
  try {
    result = run_in_folder(folder, make_client, job, indices, options);
  } catch (const Error& error) {
    if (arguments.json) print_summary(folder.path(), without_fix(error), std::nullopt);
    throw;
  }
  if (arguments.json) print_summary(folder.path(), "", result.report.seconds);
  if (!arguments.quiet) std::fprintf(stderr, "%s\n", describe(result).c_str());
  if (result.counts.failed == 0) return static_cast<int>(ExitCode::kDone);
  std::fprintf(stderr, "%s\n",
               ("reasons are in " + (folder.path() / "failed.jsonl").string()).c_str());
  return static_cast<int>(ExitCode::kItemsFailed);
}

// The folder of a run without an output folder goes; what items wrote to stderr must not go with it.
void show_worker_logs(const std::filesystem::path& run_folder) {
  std::vector<std::filesystem::path> logs;
  std::error_code none;  // workers that are threads have no logs
  for (const auto& entry : std::filesystem::directory_iterator(run_folder / "logs", none))
    if (entry.path().filename().string().starts_with("worker-")) logs.push_back(entry.path());
  std::sort(logs.begin(), logs.end());
  for (const auto& log : logs) {
    const MappedFile words(log);
    if (!words.bytes().empty()) std::fwrite(words.bytes().data(), 1, words.bytes().size(), stderr);
  }
}

int run_to_stdout(const MapArguments& arguments, const ParallelSettings& settings,
                  const MapItems& items) {
  if (settings.async)
    throw ConfigError("map: an asynchronous run needs a place for its results",
                      "add --output_dir DIR");
  if (items.size() == 0) {
    if (!arguments.quiet) std::fprintf(stderr, "no items: nothing to do\n");
    return 0;
  }
  Client client(settings);
  const JobSpec job = map_job(arguments, settings, items, items.write(client.run_folder()));
  OrderedOutput output(arguments.json, items.size());
  const auto finish = [&] {
    output.finish();
    show_worker_logs(client.run_folder());
  };
  const RunRequest request{.indices = range(items.size()),
                           .work = {},
                           .options = run_options(arguments, items),
                           .on_tick = nullptr};
  try {
    client.run(job, request, [&](const Outcome& outcome) {
      if (outcome.ok())
        output.add(outcome.index, items.name(outcome.index), take_result(client, outcome));
      else
        output.add_failed(outcome.index, items.name(outcome.index), outcome.payload);
    });
  } catch (const Cancelled& stopped) {
    finish();
    throw Cancelled(stopped.exit_code() == ExitCode::kInterrupted ? Cancelled::By::kUser
                                                                  : Cancelled::By::kSignal,
                    without_fix(stopped),
                    "nothing is kept without an output folder: the same command begins anew; with "
                    "--output_dir DIR a run can be continued");
  } catch (const TaskError&) {
    finish();
    throw;
  } catch (...) {  // what is done is done, also when the run is not; the error quotes the logs
    output.finish();
    throw;
  }
  finish();
  return static_cast<int>(output.num_failed() == 0 ? ExitCode::kDone : ExitCode::kItemsFailed);
}

// Takes `::: a b c` out of `words`; what stands before it stays.
void take_list(std::vector<std::string>& words, MapArguments& arguments) {
  const auto mark = std::find(words.begin(), words.end(), ":::");
  if (mark == words.end()) return;
  arguments.has_list = true;
  arguments.listed.assign(mark + 1, words.end());
  words.erase(mark, words.end());
}

// All words after ::: are items; one that is an option of ours was likely meant as that.
void refuse_listed_options(const CLI::App& app, const MapArguments& arguments) {
  for (const std::string& word : arguments.listed) {
    const std::string name = word.substr(0, word.find('='));
    if (word == ":::" || (name.starts_with("-") && app.get_option_no_throw(name) != nullptr))
      throw ConfigError(fmt::format("map: {} stands after :::, where all words are items", word),
                        "put options before ::: ; for an item of that name use --items FILE");
  }
}

// Options of xargs and GNU parallel, whose names are so near to others of ours that a guess misleads.
void refuse_foreign_options(const std::vector<std::string>& words) {
  static const std::pair<const char*, const char*> kNames[] = {
      {"--timeout", "parallel.item_timeout=SECONDS"},
      {"--halt", "parallel.on_error=stop (or skip)"},
      {"--retries", "parallel.max_retries=N"},
      {"--results", "--output_dir DIR"},
      {"--joblog", "--times FILE"},
      {"--arg-file", "--items FILE"},
      {"-a", "--items FILE"},
      {"-P", "-j N"}};
  for (const std::string& word : words)
    for (const auto& [theirs, ours] : kNames)
      if (word.substr(0, word.find('=')) == theirs)
        throw ConfigError(fmt::format("map: unknown argument '{}'", word),
                          fmt::format("it is called {} here", ours));
}

[[noreturn]] void refuse_foreign_place(const std::string& word, const std::string& ours) {
  throw ConfigError(
      fmt::format("map: {} is GNU parallel's; here the command would get it as it stands", word),
      fmt::format("write {}; where {} is meant as it stands, put it into a script", ours, word));
}

// GNU parallel's names for the item. {1} counts where it stands alone: in a{1} of a regular expression it is none. {#}
// and {%} have no other meaning, but for ${#} and ${%} of a shell.
void refuse_foreign_places(const std::vector<std::string>& command) {
  static const std::map<std::string, std::string> kAnywhere = {
      {"{#}", "{index} (it counts from 0)"},
      // A slot's number: of a GPU, most of the time.
      {"{%}",
       "{index}, the item's number (there are no slots: parallel.env=local_gpu gives every worker "
       "a GPU of its own)"}};
  static const std::set<std::string> kOurs = {"{}", "{.}", "{/}", "{//}", "{/.}", "{index}"};
  for (const std::string& text : command) {
    for (const auto& [theirs, ours] : kAnywhere)
      for (auto at = text.find(theirs); at != std::string::npos; at = text.find(theirs, at + 1))
        if (at == 0 || text[at - 1] != '$') refuse_foreign_place(theirs, ours);
    for (std::string word : split_words(text)) {
      std::erase_if(word, [](char c) { return c == '"' || c == '\''; });
      if (word.size() < 3 || word.front() != '{' || word.back() != '}') continue;
      const std::string inside = word.substr(1, word.size() - 2);
      const auto digits = std::min(inside.find_first_not_of("0123456789"), inside.size());
      const std::string ours = "{" + inside.substr(digits) + "}";
      if (digits > 0 && kOurs.contains(ours)) refuse_foreign_place(word, ours);
    }
  }
}

}  // namespace

int run_map(int argc, char** argv) {
  end_on_stop_signals();
  MapArguments arguments;
  // What follows "--" is the command, untouched; items may stand before it or after.
  std::vector<std::string> own(argv + 1, argv + argc);
  const auto dashes = std::find(own.begin(), own.end(), "--");
  const bool has_dashes = dashes != own.end();
  if (has_dashes) {
    arguments.command.assign(dashes + 1, own.end());
    own.erase(dashes, own.end());
  }
  take_list(own, arguments);
  if (!arguments.has_list) take_list(arguments.command, arguments);

  CLI::App app{
      "Run a command per item on any backend; stdout of each item becomes its result.\n"
      "usage: tutti map [OPTIONS] [key=value...] [::: ITEM...] -- COMMAND with {}",
      "tutti map"};
  app.footer(kExamples);
  app.add_option("--config", arguments.config_files,
                 "config file(s) with a parallel: block; later ones merge over earlier ones");
  app.add_option("--parallel", arguments.parallel,
                 "name of the parallel block to use: parallel_gpu, or just gpu");
  app.add_option("overrides", arguments.overrides, "key=value");
  app.add_option("--items", arguments.items,
                 "a file with one item per line, or a number N for 0..N-1 (default: stdin)");
  app.add_flag("-0,--null", arguments.nul_separated, "items are separated by NUL, not by newline");
  app.add_option("-j,--jobs", arguments.jobs,
                 "workers; as parallel.n_workers (default without a config: all processors)");
  app.add_option("--output_dir", arguments.output_dir,
                 "where results go; run again to resume (default: stdout)");
  app.add_flag("--force", arguments.force, "forget what the output folder holds and start over");
  app.add_flag("--append", arguments.append,
               "the list begins with that of the output folder: keep what is done, run the rest");
  app.add_flag("--async", arguments.async,
               "submit and leave; the workers write the results themselves");
  app.add_option("--times", arguments.times,
                 "a file that gets a line per item: number, worker, start, seconds, status");
  app.add_flag("--quiet", arguments.quiet, "no progress, no summary");
  app.add_flag("--json", arguments.json,
               "a summary as JSON on stdout; without --output_dir the results as JSON lines");
  refuse_listed_options(app, arguments);
  refuse_foreign_options(own);
  try {
    if (const auto code = parse_arguments(app, own)) return *code;
  } catch (const ConfigError& error) {
    if (has_dashes || !error.fix().starts_with("see ")) throw;  // it knows better
    throw ConfigError(without_fix(error), kCommandGoes);        // likely an option of the command
  }
  if (app.count("--jobs") > 0 && arguments.jobs < 1)
    throw ConfigError(fmt::format("map: --jobs: got {}, expected at least 1", arguments.jobs),
                      "leave it out to use all processors");
  if (app.count("--output_dir") > 0 && arguments.output_dir.empty())
    throw ConfigError("map: --output_dir: got an empty name, expected a folder",
                      "is the variable set? Without the option the outputs go to stdout");
  part_overrides(arguments.config_files, arguments.overrides);
  if (arguments.append && (arguments.force || arguments.output_dir.empty()))
    throw ConfigError("map: --append goes on in an output folder",
                      arguments.force ? "leave out --force" : "add --output_dir DIR");
  if (arguments.command.empty()) throw ConfigError("map: no command", kCommandGoes);
  const ParallelSettings settings = read_settings(arguments);
  if (settings.async && !arguments.times.empty())
    throw ConfigError("map: --times is kept by the driver, and an asynchronous run has none",
                      "leave out one of them");
  const MapItems items = read_item_list(arguments);
  if (const std::string blank = items.about_blank_lines(); !blank.empty() && !arguments.quiet)
    log::warning("{}", blank);
  refuse_foreign_places(arguments.command);
  // Refused here rather than on a worker.
  [[maybe_unused]] const CommandTemplate checked(arguments.command, items.are_numbers());
  if (!arguments.quiet && items.size() > 0 && !uses_item(arguments.command))
    log::warning(
        "the command has no {{}}: every item runs the same; {{}} stands for the item, which is in "
        "$TUTTI_ITEM too");
  // A closed terminal, or a reader of our output that leaves, is no reason to stop a run.
  std::signal(SIGPIPE, SIG_IGN);
  if (!arguments.output_dir.empty()) std::signal(SIGHUP, SIG_IGN);
  return arguments.output_dir.empty() ? run_to_stdout(arguments, settings, items)
                                      : run_in_output_dir(arguments, settings, items);
}

}  // namespace tutti::apps
