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
#include "tutti/parallel/run/job_record.h"
#include "tutti/parallel/wire/process_identity.h"

namespace tutti::apps {
namespace {

[[noreturn]] void refuse_to_say_stopped(const std::string& folder,
                                        const std::vector<std::string>& jobs) {
  throw SchedulerError(
      fmt::format("{}: jobs may still be in the queue: {}", folder, join(jobs, " ")),
      "give the same command again; they do nothing but leave, should they start before");
}

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

// What is noted of a driver that was killed, or whose scheduler did not listen when it ended. Returns how many
// jobs were there.
std::size_t take_jobs_out_of_queue(const std::string& folder) {
  parallel::ShortPatience scheduler;
  const auto jobs = parallel::cancel_left_over(std::filesystem::absolute(folder), scheduler);
  if (!jobs.left.empty()) refuse_to_say_stopped(folder, jobs.left);
  if (jobs.unknown)
    throw SchedulerError(
        fmt::format("{}: nobody could be asked whether jobs of its driver are in the queue",
                    folder),
        "give the same command again");
  return jobs.found;
}

}  // namespace

int run_cancel(int argc, char** argv) {
  std::string folder;
  bool quiet = false;
  bool now = false;
  CLI::App app{
      "Stop the run in an output folder; it can be resumed\n"
      "exit: 0 it has stopped; the jobs of a driver that was killed are out of the queue\n"
      "      6 it has stopped, but jobs may still be in the queue: they are named, and the same\n"
      "        command tries again",
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
    if (!left.empty()) refuse_to_say_stopped(folder, left);
    return 0;
  }
  if (!state.contains("driver")) {
    const std::size_t jobs = take_jobs_out_of_queue(folder);
    const std::string word = state.value("state", "?");
    if (!quiet && jobs == 0)
      std::printf("%s: nothing runs there (%s)\n", folder.c_str(), word.c_str());
    if (!quiet && jobs > 0)
      std::printf("%s: its driver is gone (%s); %zu job%s taken out of the queue\n", folder.c_str(),
                  word.c_str(), jobs, jobs == 1 ? "" : "s");
    return 0;
  }
  signal_driver(folder, now ? 2 : 1);
  while (folder_state(folder).contains("driver"))
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  take_jobs_out_of_queue(folder);
  state = folder_state(folder);
  if (!quiet) std::printf("%s: %s\n", folder.c_str(), state.value("state", "?").c_str());
  return 0;
}

}  // namespace tutti::apps
