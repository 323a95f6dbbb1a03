// Keeps one asynchronous worker alive on its node.
#include <fmt/format.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/subprocess.h"
#include "tutti/parallel/async/job.h"
#include "tutti/parallel/async/worker.h"
#include "tutti/parallel/wire/signals.h"

namespace tutti::parallel {
namespace {

constexpr int kMostFailedStarts = 3;

// Somebody has built its env: then this node is at fault, not the run.
bool others_work(const std::filesystem::path& folder, const std::string& own) {
  for (const WorkerNote& note : read_worker_notes(folder))
    if (note.name != own && note.phase != "building" && note.error.empty()) return true;
  return false;
}

}  // namespace

int supervise_async(const std::vector<std::string>& command, const WorkerOptions& options) {
  // The terminal the run was submitted from may close.
  const SignalWatch signals({SIGTERM}, {SIGHUP, SIGINT});
  const auto folder = async_folder(options.run_folder);
  std::random_device random;
  for (int failed_starts = 0;;) {
    const std::string name = fmt::format("{}-{:08x}", options.id, random());
    Command child{.argv = command};
    child.argv.insert(child.argv.end(), {"--name", name});
    Process worker = Process::start(child);
    std::optional<ExitStatus> ended;
    bool told = false;
    while (!(ended = worker.wait_for(std::chrono::milliseconds(100)))) {
      if (signals.count() == 0 || told) continue;
      ::kill(worker.pid(), SIGTERM);  // not the group: its item may finish
      told = true;
    }
    worker.signal_group(SIGKILL);  // what it had started
    const auto note = read_worker_note(folder, name);
    const std::string error = note ? note->error : "";
    if (signals.count() > 0) return 0;
    if (ended->ok() && error.empty()) return 0;
    if (ended->exit_code == static_cast<int>(ExitCode::kIo) && ended->signal == 0)
      return ended->exit_code;  // the folder is gone or full; its log says so
    failed_starts = note && note->phase != "building" ? 0 : failed_starts + 1;
    log::warning("worker {} ended ({}){}{}", name, ended->describe(), error.empty() ? "" : ": ",
                 error);
    if (failed_starts >= kMostFailedStarts) {
      if (others_work(folder, name)) {
        log::error("no worker comes up on this node; the run goes on with the others");
        return ended->exit_code == 0 ? static_cast<int>(ExitCode::kItemsFailed) : ended->exit_code;
      }
      request_stop(
          folder,
          {.exit_code = ended->exit_code == 0 || ended->signal != 0
                            ? static_cast<int>(ExitCode::kItemsFailed)
                            : ended->exit_code,
           .reason = error.empty() ? fmt::format("{} workers in a row did not come up: {}",
                                                 failed_starts, ended->describe())
                                   : fmt::format("the env could not be built in {} tries: {}",
                                                 failed_starts, error)});
      return ended->exit_code;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50) * (failed_starts + 1));
  }
}

}  // namespace tutti::parallel
