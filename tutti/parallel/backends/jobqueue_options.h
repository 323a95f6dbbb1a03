// The options of the batch schedulers: dask-jobqueue's names, read, checked and translated.
//
//   parallel:
//     env: slurm
//     n_workers: 16                  # worker processes, not jobs
//     options: {queue: gpu, cores: 8, processes: 4, memory: 28GB, walltime: "02:00:00"}
//
// cores, memory, disk and processes are per job; jobs = ceil(n_workers / processes). Names are
// accepted with `-` or `_`. Old names warn. Names that mean something to Python only are translated
// or accepted with a sentence that says why they do nothing; names of another scheduler are errors
// that say where they belong. Values that schedulers read as text (walltime, job_mem) stay text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/config/schema.h"

namespace tutti::parallel {

enum class SchedulerKind { kSlurm, kPbs, kMoab, kSge, kLsf, kHtcondor, kOar };

const char* scheduler_name(SchedulerKind kind);  // "slurm"

struct JobQueueOptions {
  // The shape of a job.
  int cores = 0;
  config::Bytes memory;
  int processes = 0;  // 0: default_processes(cores), as dask-jobqueue has it
  double death_timeout = 60;
  std::optional<std::string> local_directory;  // may hold $VAR: expanded in the job
  std::optional<std::string> interface;
  std::vector<std::string> worker_extra_args;
  std::optional<std::string> python;
  std::optional<std::string> worker_command;
  std::optional<double> drain_margin;  // seconds before the walltime; ours
  bool job_array = true;               // ours
  bool export_keys = false;            // ours: the run's keys also travel in the job's environment

  // The script.
  std::string job_name = "tutti-worker";
  std::optional<std::string> shebang;
  std::vector<std::string> job_script_prologue;
  std::vector<std::string> job_script_epilogue;
  config::Node job_extra_directives;  // a list, or a map
  std::vector<std::string> job_directives_skip;
  std::optional<std::string> log_directory;

  // What only some schedulers have.
  std::optional<std::string> queue;
  std::optional<std::string> account;
  std::optional<std::string> project;
  std::optional<std::string> walltime;  // as written
  std::optional<std::string> resource_spec;
  std::optional<int> job_cpu;                                // slurm
  std::optional<std::string> job_mem;                        // slurm
  std::optional<int> ncpus;                                  // lsf
  std::optional<config::Bytes> mem;                          // lsf
  std::optional<std::string> lsf_units;                      // lsf
  bool use_stdin = true;                                     // lsf
  std::optional<config::Bytes> disk;                         // htcondor
  std::vector<std::string> submit_command_extra;             // htcondor
  std::vector<std::string> cancel_command_extra;             // htcondor
  std::optional<std::string> memory_per_core_property_name;  // oar
  std::string parallel_environment = "smp";                  // sge; ours
  std::string memory_resource = "mem_free";                  // sge; ours
  bool check_hosts = true;                                   // sge, htcondor; ours

  // Accepted for dask-jobqueue's sake; see the notices in the .cpp.
  config::Node nanny, protocol, security, shared_temp_directory, config_name, name,
      scheduler_options, scheduler_cls, silence_logs, asynchronous, loop, job_cls;

  // Filled in by parse_jobqueue_options.
  double walltime_s = 0;                      // 0: none
  std::optional<double> lifetime_s;           // from worker_extra_args: --lifetime
  std::optional<double> lifetime_stagger_s;   // --lifetime-stagger
  std::vector<std::string> launcher;          // words before the worker command, from `python`
  std::vector<std::string> extra_directives;  // shell schedulers
  std::vector<std::pair<std::string, std::string>> extra_assignments;  // htcondor

  int threads() const { return cores / processes; }
  std::uint64_t worker_memory() const {
    return memory.count / static_cast<std::uint64_t>(processes);
  }
};

// The schema of one scheduler, for parsing and for the generated reference. What it says of keys
// that are written otherwise here holds their values in `options`.
config::Schema<JobQueueOptions> jobqueue_schema(SchedulerKind kind,
                                                const config::Node& options = {});

// Reads `options`; adds every problem and warning. The result is meaningful only if no problem was
// added.
JobQueueOptions parse_jobqueue_options(SchedulerKind kind, const config::Node& options,
                                       config::Problems& problems);

// dask-jobqueue's split: cores up to 4, else the smallest divisor of cores that is >= sqrt(cores).
int default_processes(int cores);

}  // namespace tutti::parallel
