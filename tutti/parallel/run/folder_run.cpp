#include "tutti/parallel/run/folder_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/units.h"
#include "tutti/parallel/run/job_record.h"
#include "tutti/parallel/run/progress.h"

namespace tutti::parallel {
namespace {

// For who has nothing else to do: the scheduler does not get longer than at the end of a run.
class Briefly final : public CommandRunner {
 public:
  CommandResult run(const Command& command) override {
    Command own = command;
    own.timeout = std::chrono::seconds(10);
    return CommandRunner::system().run(own);
  }
};

void end_left_over_jobs(const std::filesystem::path& folder) try {
  Briefly scheduler;
  cancel_left_over(folder, scheduler);
} catch (const Error& error) {
  log::warning("cannot end what an earlier driver has left: {}", error.what());
}

}  // namespace

FolderRunResult run_in_folder(RunFolder& folder, const std::function<Client&()>& make_client,
                              const JobSpec& job, const Indices& indices, const RunOptions& options,
                              const std::function<void(std::uint64_t, const Json&)>& each) {
  FolderRunResult result;
  RunRequest request{.indices = indices, .work = folder.remaining(), .options = options};
  if (!request.work.empty()) {
    Progress progress(indices.size(), folder.num_done_before(), options.progress);
    request.on_tick = [&](const RunReport& report, bool last) {
      folder.tick(report);
      progress.show(report, last);
    };
    try {
      Client& client = make_client();
      result.report =
          client.run(job, request, [&](const Outcome& outcome) { folder.record(client, outcome); });
    } catch (const Cancelled& stopped) {  // whatever ended the run, the folder is left resumable
      const bool by_user = stopped.exit_code() == ExitCode::kInterrupted;
      folder.stop(options.item_of,
                  fmt::format("{}: {}", by_user ? "Ctrl-C" : "SIGTERM, as tutti cancel sends it",
                              stopped.what()));
      throw;
    } catch (const Error& error) {
      folder.stop(options.item_of, error.what(), static_cast<int>(error.exit_code()));
      throw;
    } catch (const std::exception& error) {
      folder.stop(options.item_of, error.what());
      throw;
    } catch (...) {
      folder.stop(options.item_of);
      throw;
    }
  } else {  // no driver comes that would end what an earlier one could not
    end_left_over_jobs(std::filesystem::absolute(folder.path()));
  }
  result.counts = folder.finish(options.item_of, each);
  return result;
}

std::string describe(const FolderRunResult& result) {
  const RunReport& run = result.report;
  std::string text = fmt::format("{} items: {} ok, {} failed", result.counts.total,
                                 result.counts.ok, result.counts.failed);
  if (run.done == 0) return text + " (nothing left to do)";
  const std::uint64_t before = result.counts.ok + result.counts.failed -
                               std::min(run.done, result.counts.ok + result.counts.failed);
  text += fmt::format("; {} done now in {} ({:.0f}/s)", run.done, format_duration(run.seconds),
                      static_cast<double>(run.done) / std::max(run.seconds, 1e-9));
  if (before > 0) text += fmt::format(", {} before", before);
  double build = 0;
  for (const WorkerReport& worker : run.workers) build = std::max(build, worker.build_s);
  text += fmt::format("; {} worker{} {:.0f} % busy, first result after {}, env built in {}",
                      run.workers.size(), run.workers.size() == 1 ? "" : "s", 100 * run.utilisation,
                      format_duration(run.first_result_s), format_duration(build));
  if (run.workers_lost > 0)
    text += fmt::format("; {} workers lost, {} items handed out again", run.workers_lost,
                        run.handed_again);
  if (!run.failed_starts.empty()) text += "; " + run.failed_starts;
  return text;
}

}  // namespace tutti::parallel
