// Text the batch schedulers share: sizes, times, directives and the shell lines that run workers.
// All pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/parallel/backends/jobqueue_options.h"

namespace tutti::parallel {

// Seconds of a walltime as this scheduler would read it, or as people write it (90m, 2h30m,
// 1-12:00:00). A bare number and two fields mean what the scheduler says they mean: `30` is 30
// minutes to Slurm and LSF, 30 hours to OAR, 30 seconds to PBS and SGE; `02:00` is two hours to LSF
// and OAR, two minutes elsewhere.
std::optional<double> parse_walltime(SchedulerKind kind, std::string_view text);
// Whether people may mean another time by it than the scheduler: a bare number, or minutes and seconds.
bool is_doubtful_walltime(SchedulerKind kind, std::string_view text);
// The walltime for the scheduler: the text itself where it is in the scheduler's own form, else
// rendered (rounded up to LSF's minutes).
std::string format_walltime(SchedulerKind kind, const std::string& text, double seconds);

// Sizes, rounded up so that a job never gets less than asked for; powers of 1024.
std::string slurm_memory(std::uint64_t num_bytes);  // "27G", "954M", "2K"
std::string pbs_memory(std::uint64_t num_bytes);    // "27GB", "7630MB", "12B"
std::uint64_t ceil_div(std::uint64_t value, std::uint64_t unit);

// One generated line of a header. `keys` are its exact names for skipping and overriding:
// {"-p", "--partition"} or {"walltime"}.
struct Directive {
  std::vector<std::string> keys;
  std::string text;  // "-p gpu"
};

// The names under which a directive in words can be skipped: "-p gpu" -> "-p"; "--mem=4G" ->
// "--mem".
std::string directive_name(std::string_view text);

// Drops what `skip` names exactly and what an extra directive sets itself; appends the extras.
// `unmatched` gets the skip entries that named nothing.
std::vector<std::string> final_directives(const std::vector<Directive>& generated,
                                          const std::vector<std::string>& skip,
                                          const std::vector<std::string>& extras,
                                          std::vector<std::string>& unmatched);

// Quotes a word for the job's shell but lets $VAR be expanded there: users write $TMPDIR on
// purpose.
std::string quote_expandable(std::string_view word);

// What a scheduler's environment tells the script.
struct JobShell {
  std::string job_id;  // shell text that gives the job's id: "${SLURM_JOB_ID:-}"
  std::string
      task_index;  // shell arithmetic for the index in the array, from 0; "0" where there is none
  std::string end_time;  // shell word with the end of the job in unix seconds, "" if the scheduler
                         // says none
  std::string
      work_folder;  // shell word: cd there first; "" where the job starts in the submit folder
};

struct WorkerLaunch;

// The lines from the prologue to the epilogue: start `processes` workers, forward signals so that
// they drain, wait for all, leave with the worst exit code. `first_worker_id` belongs to array
// index 0.
std::string worker_lines(const JobQueueOptions& options, const WorkerLaunch& launch,
                         const JobShell& shell, int first_worker_id);

}  // namespace tutti::parallel
