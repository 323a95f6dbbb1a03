// What all batch schedulers have in common, and the small interface in which they differ.
//
// A Dialect is one scheduler's words: the job script, the submit command, how to read its answers.
// It holds no state and talks to the scheduler only through the CommandRunner it is given, so a
// dialect is tested with text alone. JobQueueBackend is the Backend over a dialect: it counts
// workers into jobs, submits (as an array where possible), retries what is transient, asks for the
// state of all jobs in one call, spares a slow scheduler, and cancels.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/backends/jobqueue_format.h"
#include "tutti/parallel/backends/jobqueue_options.h"

namespace tutti::parallel {

// One submission: a single job, or an array of them.
struct Submission {
  int num_jobs = 1;              // > 1: an array
  int first_worker_id = 0;       // of array index 0; index i has first_worker_id + i * processes
  std::filesystem::path folder;  // where its files are written: RUN/scripts
  std::string stem;              // "job-5f01c2aa-0": files are FOLDER/STEM.sh ...
  std::filesystem::path log_folder;
  std::vector<std::string> avoid;  // nodes that should get none of it
};

// The files of a submission and the command that hands it in.
struct SubmissionText {
  std::string script;  // what the scheduler reads: FOLDER/STEM.sh, or .sub for HTCondor
  std::string script_suffix = ".sh";
  std::map<std::string, std::string> beside;  // more files by name in FOLDER (HTCondor's job.sh)
  Command submit;
  std::string submit_line;                   // as one would type it
  std::vector<std::string> unmatched_skips;  // entries of job_directives_skip that named nothing
};

// What the scheduler says of one job.
struct QueueState {
  JobPhase phase = JobPhase::kPending;
  std::string reason;
  bool preempted = false;
  bool must_remove = false;  // failed for good but still in the queue (held, Eqw): cancel it
  std::string node;          // where it runs or ran, where the scheduler says so

  bool in_queue() const {
    return must_remove || phase == JobPhase::kPending || phase == JobPhase::kRunning;
  }
};

// A job of ours that the scheduler knows, and the script it was made of.
struct FoundJob {
  std::string id;
  std::string script;
};

class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual SchedulerKind kind() const = 0;
  // The most jobs one array may hold; 1: no arrays.
  virtual int max_array() const { return 1; }
  virtual SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                              const Submission& submission) const = 0;
  // The ids of the jobs, one per array index; empty when the answer is not understood.
  virtual std::vector<std::string> parse_submit(const CommandResult& result,
                                                int num_jobs) const = 0;
  // Every job of this user that the scheduler knows, with its script: how a submission without an
  // answer is found again. Empty optional: this scheduler does not tell. Throws SchedulerError when
  // it cannot be asked.
  virtual std::optional<std::vector<FoundJob>> find(CommandRunner& /*runner*/) const {
    return std::nullopt;
  }
  // States of those of `ids` (a few hundred at most) the scheduler knows. Throws SchedulerError
  // when it cannot be asked.
  virtual std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                                  CommandRunner& runner) const = 0;
  // Why no host could ever run such a job, in the scheduler's figures; empty: one could, or that
  // cannot be told. For schedulers that would let the job wait for ever; asked before the first
  // submission.
  virtual std::string impossible(const JobQueueOptions& /*options*/,
                                 CommandRunner& /*runner*/) const {
    return "";
  }
  // "scancel ID...": the words before the ids.
  virtual std::vector<std::string> cancel_words(const JobQueueOptions& options) const = 0;
  Command cancel_command(const JobQueueOptions& options, const std::vector<std::string>& ids) const;
  // To be run before `ids` are cancelled, for schedulers that put a job back into the queue even after that:
  // from then on it does not come back. Whether they succeed does not matter.
  virtual std::vector<Command> forbid_return(const std::vector<std::string>& /*ids*/) const {
    return {};
  }
  // Where a job's output goes: LOGS/NAME-ID.err unless the scheduler names its files itself.
  virtual std::filesystem::path log_path(const JobQueueOptions& options,
                                         const Submission& submission,
                                         const std::string& job_id) const;
};

std::unique_ptr<Dialect> make_slurm();
std::unique_ptr<Dialect> make_pbs();
std::unique_ptr<Dialect> make_moab();
std::unique_ptr<Dialect> make_sge();
std::unique_ptr<Dialect> make_lsf();
std::unique_ptr<Dialect> make_htcondor();
std::unique_ptr<Dialect> make_oar();

// "shebang, empty line, PREFIX directive..., body": the script of every scheduler that reads one.
SubmissionText shell_script(const JobQueueOptions& options, const std::string& prefix,
                            const std::vector<Directive>& directives, const std::string& body);
// FOLDER/STEM.sh
std::string script_path(const Submission& submission, const std::string& suffix = ".sh");
// Runs a query of the scheduler, in English and with a time limit. Never throws for what it
// answers.
CommandResult ask(CommandRunner& runner, std::vector<std::string> argv);

// The log folder in words for a directive: the user's text when given ($VAR kept), else LOGS of the
// run.
std::string log_folder_text(const JobQueueOptions& options, const Submission& submission);

// A path in a directive: in quotes where it has blanks.
std::string directive_path(const std::string& path);

// Touched by one thread only.
class JobQueueBackend final : public Backend {
 public:
  JobQueueBackend(std::unique_ptr<Dialect> dialect, JobQueueOptions options, WorkerLaunch launch,
                  CommandRunner& runner, const Clock& clock = Clock::system());

  std::vector<JobStatus> submit(int n) override;
  std::vector<JobStatus> poll() override;
  std::string unanswered() const override { return unanswered_; }
  bool cancel(const std::vector<std::string>& job_ids = {}) noexcept override;
  void avoid(const std::vector<std::string>& nodes) override { avoid_ = nodes; }
  LeftOver cancel_left_over(const std::string& life,
                            const std::vector<std::string>& job_ids) override;
  void adopt(const std::vector<JobStatus>& jobs) override;
  std::vector<ScriptPreview> scripts(int n) const override;

 private:
  struct Job {
    JobStatus status;
    std::filesystem::path job_log;  // the scheduler's file, beside the workers' own
    Clock::TimePoint submitted;
    int times_missing = 0;
    Clock::TimePoint missing_since;
    bool over = false;
    bool cancelled_by_us = false;
  };

  // A submission without an answer: the scheduler has it, or not.
  struct Unsure {
    Submission submission;
    std::string script;
    Clock::TimePoint since;
    int answers_without_it = 0;
  };

  std::vector<Submission> plan(int n) const;
  std::string stem(int number) const;
  std::vector<JobStatus> submit_one(const Submission& submission);
  std::vector<JobStatus> take_in(const Submission& submission, const std::vector<std::string>& ids);
  std::vector<JobStatus> settle_unsure();
  CommandResult run_submit(const Command& command);
  bool due() const;
  void ask_for_states(const std::vector<std::string>& jobs);
  void apply(Job& job, const std::map<std::string, QueueState>& states);
  std::filesystem::path worker_log(int worker) const;
  bool has_begun(const Job& job) const;
  // Those that may still be there. `may_return`: those of them that may be about to begin.
  std::vector<std::string> cancel_ids(const std::vector<std::string>& ids,
                                      const std::vector<std::string>& may_return);

  // constant after construction
  const std::unique_ptr<Dialect> dialect_;
  const JobQueueOptions options_;
  const WorkerLaunch launch_;
  CommandRunner& runner_;
  const Clock& clock_;

  std::vector<Job> jobs_;
  std::vector<Unsure> unsure_;
  std::vector<std::string> stuck_;  // reported as over, but in the queue until they are cancelled
  std::vector<std::string> avoid_;
  int next_worker_id_ = 0;
  int next_submission_ = 0;
  bool hosts_checked_ = false;   // Dialect::impossible has been asked
  bool arrays_refused_ = false;  // this cluster has arrays switched off
  std::optional<Clock::TimePoint> last_query_;
  Seconds query_pause_{1.0};
  int failed_queries_ = 0;
  std::string unanswered_;
};

}  // namespace tutti::parallel
