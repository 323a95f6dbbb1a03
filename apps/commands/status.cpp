// tutti status: how a run in a folder is doing, from any shell.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/commands/folder_state.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"

namespace tutti::apps {

namespace {

// `counted`: what they have done is known.
void print_workers(const Json& workers, bool counted) {
  for (const Json& worker : workers) {
    std::printf("  worker %d  %-9s %s pid %llu", worker.value("id", 0),
                worker.value("phase", "").c_str(), worker.value("host", "").c_str(),
                static_cast<unsigned long long>(worker.value("pid", std::uint64_t{0})));
    if (counted)
      std::printf("  %llu items  busy %s of %s  %s",
                  static_cast<unsigned long long>(worker.value("items", std::uint64_t{0})),
                  format_duration(worker.value("busy_s", 0.0)).c_str(),
                  format_duration(worker.value("up_s", 0.0)).c_str(),
                  format_bytes(worker.value("rss_bytes", std::uint64_t{0})).c_str());
    std::putchar('\n');
  }
}

// The driver writes these once a second, while items are counted up to now: before its first
// result they would say that nobody works, and later they say how old they are.
void print_live(const Json& live) {
  const bool counted = live.at("eta_s").is_number();
  if (counted)
    std::printf(
        "rate %.4g/s (last %s), ETA %s, utilisation %.0f %%, %llu workers lost (%s ago)\n",
        live.value("rate", 0.0), format_duration(live.value("rate_window_s", 0.0)).c_str(),
        format_duration(live.at("eta_s").get<double>()).c_str(),
        100 * live.value("utilisation", 0.0),
        static_cast<unsigned long long>(live.value("workers_lost", std::uint64_t{0})),
        format_duration(std::max(0.0, Clock::system().unix_seconds() - live.value("updated", 0.0)))
            .c_str());
  if (const std::string waiting = live.value("waiting", ""); !waiting.empty())
    std::printf("%s\n", waiting.c_str());
  print_workers(live.value("workers", Json::array()), counted);
  if (const auto more = live.value("workers_not_listed", std::uint64_t{0}); more > 0)
    std::printf("  and %llu more\n", static_cast<unsigned long long>(more));
}

}  // namespace

int run_status(int argc, char** argv) {
  std::string folder;
  bool json = false;
  bool quiet = false;
  CLI::App app{
      "Show the state of an output folder of map or infer\n"
      "exit: 0 when the folder holds a run, whatever its state (tutti wait tells how it ended), 3 "
      "when it does not, 4 when it is another user's, of which not all can be seen",
      "tutti status"};
  app.add_option("folder", folder, "the output folder")->required();
  app.add_flag("--json", json, "as JSON");
  app.add_flag("--quiet", quiet, "print nothing: is there a run?");
  app.footer(example("tutti status exp/decoded"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  parallel::ShortPatience scheduler;
  const Json state = folder_state(folder, &scheduler);
  if (quiet) return 0;
  if (json)  // reasons quote what items printed: bytes of any kind
    std::printf("%s\n", state.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  else
    std::printf("%s\n", describe_counts(folder, state).c_str());
  if (state.contains("owner")) {
    std::fflush(stdout);
    throw IoError(fmt::format("{}: the run belongs to {}: this is what was last written there for "
                              "all to see. Whether anybody works on it, its workers, its jobs and "
                              "the names of its items cannot be seen",
                              folder, state["owner"].get<std::string>()),
                  "ask its owner");
  }
  if (json) return 0;
  print_failures(stdout, folder, state);
  if (state.contains("driver"))
    std::printf("driver: process %ld on %s since %s\n", state["driver"].value("pid", 0L),
                state["driver"].value("host", "?").c_str(),
                state["driver"].value("since", "?").c_str());
  if (const std::string reason = reason_of(state); !reason.empty())
    std::printf("reason: %s\n", reason.c_str());
  if (state.contains("async")) {
    if (const std::string silence = about_silence(state); !silence.empty())
      std::printf("%s\n", silence.c_str());
    print_jobs(stdout, state);
    print_workers(state["async"]["workers"], true);
  } else if (state.contains("live")) {
    print_live(state["live"]);
  }
  if (state.contains("jobs_left"))
    std::printf("jobs may still be in the queue: %s; tutti cancel takes them out\n",
                join(state["jobs_left"].get<std::vector<std::string>>(), " ").c_str());
  print_way_on(stdout, state);
  return 0;
}

}  // namespace tutti::apps
