// Asynchronous runs: the driver submits and leaves; workers claim pieces through the output folder,
// and the last one merges. Nothing has to listen anywhere.
//
//   RunFolder folder(dir, fingerprint, range(1000), {});
//   submit_async(folder, settings, job, range(1000), {}, {});
//   ... later, on any node that sees the folder:
//   AsyncState state = *async_state(dir, true);      // "queued", "running", "done", "stopped",
//   "died"
//
// Why a folder and not a server: a cluster's nodes share a file system anyway, and no process of
// ours has to live as long as the run. Not thread-safe.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/parallel/async/job.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/folder/other_writers.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {

struct AsyncOptions {
  ItemNames item_names;
  std::vector<std::string> program;  // empty: this program
  double beat_s = 0.5;
  double stale_s = 0;  // 0: 3 s local, 20 s elsewhere, as a driver would wait
  // Called once the jobs are noted in the folder, before the scheduler is asked about them.
  std::function<void(const std::vector<JobStatus>&)> on_submitted = {};
};

// Writes the job into the folder and asks the backend for workers that outlive us. REQUIRES:
// folder.remaining() is not empty. Throws SchedulerError (the folder is then as it was),
// ConfigError where the backend cannot do without a driver; with RunOptions::handle_signals
// Cancelled, after which jobs that were noted go on.
std::vector<JobStatus> submit_async(RunFolder& folder, const ParallelSettings& settings,
                                    const JobSpec& job, const Indices& indices,
                                    const RunOptions& options, const AsyncOptions& async_options);

struct AsyncState {
  std::string state;
  std::string reason;               // of a stop, or the scheduler's words for jobs that wait
  std::string unanswered;           // why the scheduler said nothing: `jobs` are those noted
  int exit_code = 0;                // the stop's, where it has one
  std::vector<WorkerNote> workers;  // those alive
  bool coming_back = false;         // a worker has died and is being started again
  std::vector<JobStatus> jobs;      // those the scheduler knows and that are not over
  std::vector<JobStatus> ended;     // those that are, where nobody works
  bool all_pieces_done = false;     // looked at only when nobody works any more
  bool sure = true;  // false: those alive are of other hosts, and only one look was had at them
};
// Empty when the folder has no asynchronous run. `ask_scheduler`: only when no worker is alive, or none
// is seen to be.
// `watch` remembers earlier looks, for workers of other hosts; null: this is the only one, and the
// scheduler tells which of them have ended.
std::optional<AsyncState> async_state(const std::filesystem::path& output_folder,
                                      bool ask_scheduler, BeatWatch* watch = nullptr,
                                      CommandRunner& runner = CommandRunner::system());

// Does what a run that is over still lacks, because whoever should have done it was killed at the
// wrong moment or stands still: the results when all pieces are done, else the last word, and jobs
// that nobody needs any more out of the queue. Nothing while anybody works.
// `watch`: as async_state.
void settle_async(const std::filesystem::path& output_folder, BeatWatch* watch = nullptr,
                  CommandRunner& runner = CommandRunner::system());
// Writes results.jsonl and the manifest. REQUIRES: all pieces are done.
FolderCounts write_async_results(const std::filesystem::path& output_folder, const AsyncJob& job);

// Asks the workers to leave (`now`: without finishing their items) and takes jobs that wait out of
// the queue; returns when nobody works any more: the jobs that may still be in the queue, as the
// scheduler did not take them out.
std::vector<std::string> cancel_async(const std::filesystem::path& output_folder, bool now,
                                      CommandRunner& runner = CommandRunner::system());
// A worker's last act, and cancel's: a folder in which nobody works any more says so.
void mark_async_stopped(const std::filesystem::path& output_folder, const AsyncJob& job);
// Jobs of a run that is over and that have not begun: one that is held would stay for ever.
// `running_too`: also those at work. Returns those that may still be there, with a warning each.
std::vector<std::string> take_out_of_queue(const std::filesystem::path& output_folder,
                                           const AsyncJob& job, bool running_too = false,
                                           CommandRunner& runner = CommandRunner::system());

// Asks for a job like the ones before, from inside the run: what a worker does before its walltime.
void submit_successor(const std::filesystem::path& output_folder, const AsyncJob& job);

}  // namespace tutti::parallel
