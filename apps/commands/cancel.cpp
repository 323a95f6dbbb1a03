// tutti cancel: asks the driver of a folder to stop; the folder stays resumable.
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/commands/folder_state.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/folder/folder_lock.h"
#include "tutti/parallel/wire/process_identity.h"

namespace tutti::apps {
namespace {

// A pid means something on its own machine, in its own namespace, and as long as its process lives:
// the one that gets the signals is held by a descriptor while we look whether it is the right one.
void signal_driver(const std::filesystem::path& folder, int times) {
  const auto path = parallel::FolderLock::path(folder);
  const auto driver =
      parallel::ProcessIdentity::from_json(parse_json(read_file(path), path.string()));
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, driver.pid, 0U)));
  const auto alive = driver.alive();
  if (!alive)
    throw CommError(fmt::format("the driver runs on {}{}", driver.host,
                                driver.host == host_name() ? " in another container" : ""),
                    "run tutti cancel there");
  if (!*alive) return;
  for (int i = 0; i < times; ++i)
    if (process)
      ::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0U);
    else
      ::kill(static_cast<pid_t>(driver.pid), SIGTERM);  // a kernel before 5.3
}

}  // namespace

int run_cancel(int argc, char** argv) {
  std::string folder;
  bool quiet = false;
  bool now = false;
  CLI::App app{
      "Stop the run in an output folder; it can be resumed\n"
      "exit: 0 it has stopped, 6 and so it has, but the scheduler did not take its jobs out of the "
      "queue: they are named, and the same command tries again",
      "tutti cancel"};
  app.add_option("folder", folder, "the output folder")->required();
  app.add_flag("--now", now, "do not let running items finish");
  app.add_flag("--quiet", quiet, "print nothing");
  app.footer(example("tutti cancel exp/decoded"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  refuse_if_hidden(folder, "cancel");
  Json state = folder_state(folder);
  // Also one that is over: jobs that never came to work may still lie in the scheduler's hands.
  if (state.contains("async")) {
    parallel::ShortPatience scheduler;
    const auto left = parallel::cancel_async(std::filesystem::absolute(folder), now, scheduler);
    if (!quiet)
      std::printf("%s: %s\n", folder.c_str(), folder_state(folder).value("state", "?").c_str());
    if (left.empty()) return 0;
    throw SchedulerError(
        fmt::format("{}: jobs may still be in the queue: {}", folder, join(left, " ")),
        "give the same command again; they do nothing but leave, should they start before");
  }
  if (!state.contains("driver")) {
    if (!quiet)
      std::printf("%s: nothing runs there (%s)\n", folder.c_str(),
                  state.value("state", "?").c_str());
    return 0;
  }
  signal_driver(folder, now ? 2 : 1);
  while (folder_state(folder).contains("driver"))
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  state = folder_state(folder);
  if (!quiet) std::printf("%s: %s\n", folder.c_str(), state.value("state", "?").c_str());
  return 0;
}

}  // namespace tutti::apps
