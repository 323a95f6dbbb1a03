#include "tutti/parallel/backends/jobqueue.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {
namespace {

using namespace std::chrono_literals;

// Refusals that pass by themselves: a busy controller, not a wrong request.
bool is_transient(const CommandResult& result) {
  if (result.timed_out) return true;
  static const char* const kWords[] = {"temporarily unavailable",
                                       "Socket timed out",
                                       "Unable to contact",
                                       "Connection refused",
                                       "Connection timed out",
                                       "try again",
                                       "Try again",
                                       "cannot connect to server",
                                       "communication failure",
                                       "Zero Bytes were transmitted",
                                       "LSF is down"};
  return std::any_of(std::begin(kWords), std::end(kWords), [&](const char* word) {
    return result.err.find(word) != std::string::npos || result.out.find(word) != std::string::npos;
  });
}

// Arrays can be switched off for a cluster; its words then name them.
bool is_about_arrays(const CommandResult& result) {
  std::string words = result.err + result.out;
  std::transform(words.begin(), words.end(), words.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  // OAR says so of every array, whatever it then refuses.
  if (const auto at = words.find("simple array job submission is used"); at != std::string::npos)
    words.erase(at, 35);
  return words.find("array") != std::string::npos;
}

// A scheduler may lag behind its own submit command: a job it does not show is lost only after
// this.
constexpr Seconds kLag{10.0};
constexpr Seconds kLongestPause{30.0};  // for a scheduler that is slow to answer
constexpr Seconds kCalmPause{4.0};      // when nothing changes
constexpr std::size_t kCancelBatch = 200;

}  // namespace

SubmissionText shell_script(const JobQueueOptions& options, const std::string& prefix,
                            const std::vector<Directive>& directives, const std::string& body) {
  SubmissionText out;
  const auto lines = final_directives(directives, options.job_directives_skip,
                                      options.extra_directives, out.unmatched_skips);
  out.script = options.shebang.value_or("#!/usr/bin/env bash") + "\n\n";
  for (const std::string& line : lines) out.script += prefix + " " + line + "\n";
  out.script += "\n" + body;
  return out;
}

std::string script_path(const Submission& submission, const std::string& suffix) {
  return (submission.folder / (submission.stem + suffix)).string();
}

CommandResult ask(CommandRunner& runner, std::vector<std::string> argv) {
  return runner.run({.argv = std::move(argv), .env = {{"LC_ALL", "C"}}, .timeout = 60s});
}

std::string log_folder_text(const JobQueueOptions& options, const Submission& submission) {
  return options.log_directory.value_or(submission.log_folder.string());
}

std::string directive_path(const std::string& path) {
  return path.find_first_of(" \t") == std::string::npos ? path : fmt::format("\"{}\"", path);
}

Command Dialect::cancel_command(const JobQueueOptions& options,
                                const std::vector<std::string>& ids) const {
  Command command{.argv = cancel_words(options), .timeout = 60s};
  command.argv.insert(command.argv.end(), ids.begin(), ids.end());
  return command;
}

std::filesystem::path Dialect::log_path(const JobQueueOptions& options,
                                        const Submission& submission,
                                        const std::string& job_id) const {
  return log_folder_text(options, submission) + "/" + options.job_name + "-" + job_id + ".err";
}

JobQueueBackend::JobQueueBackend(std::unique_ptr<Dialect> dialect, JobQueueOptions options,
                                 WorkerLaunch launch, CommandRunner& runner, const Clock& clock)
    : dialect_(std::move(dialect)),
      options_(std::move(options)),
      launch_(std::move(launch)),
      runner_(runner),
      clock_(clock),
      next_worker_id_(launch_.first_worker_id),
      next_submission_(launch_.first_worker_id) {}

std::vector<Submission> JobQueueBackend::plan(int n) const {
  std::vector<Submission> out;
  int jobs_left = (n + options_.processes - 1) / options_.processes;
  int first = next_worker_id_;
  const int most = options_.job_array && !arrays_refused_ ? dialect_->max_array() : 1;
  for (int i = next_submission_; jobs_left > 0; ++i) {
    Submission submission;
    submission.num_jobs = std::min(jobs_left, most);
    submission.first_worker_id = first;
    submission.folder = launch_.run_folder / "scripts";
    submission.stem = fmt::format("job-{}", i);
    submission.log_folder = launch_.run_folder / "logs";
    first += submission.num_jobs * options_.processes;
    jobs_left -= submission.num_jobs;
    out.push_back(std::move(submission));
  }
  return out;
}

CommandResult JobQueueBackend::run_submit(const Command& command) {
  CommandResult result;
  for (const auto pause : {500ms, 2000ms, 0ms}) {
    result = runner_.run(command);
    if (result.ok() || !is_transient(result) || pause == 0ms) return result;
    log::warning("{}; trying again", result.describe());
    std::this_thread::sleep_for(pause);
  }
  return result;
}

std::vector<JobStatus> JobQueueBackend::submit_one(const Submission& submission) {
  SubmissionText text = dialect_->text(options_, launch_, submission);
  if (options_.export_keys)
    text.submit.env[kConnectVariable] = connect_variable(launch_.run_folder);
  for (const auto& [name, content] : text.beside)
    write_file_atomic(submission.folder / name, content, 0700);
  write_file_atomic(submission.folder / (submission.stem + text.script_suffix), text.script, 0700);
  ++next_submission_;
  const CommandResult result = run_submit(text.submit);
  if (!result.ok() && submission.num_jobs > 1 && is_about_arrays(result)) {
    log::warning("{}; submitting jobs one by one", result.describe());
    arrays_refused_ = true;
    return submit(submission.num_jobs * options_.processes);
  }
  const std::string script_hint = fmt::format(
      "the script is {}", (submission.folder / (submission.stem + text.script_suffix)).string());
  if (!result.ok()) {
    if (result.exit_code == 127)
      throw SchedulerError(
          result.describe(),
          fmt::format("run on a host with the {} commands, or use another parallel.env",
                      scheduler_name(dialect_->kind())));
    throw SchedulerError(result.describe(), script_hint);
  }
  const auto ids = dialect_->parse_submit(result, submission.num_jobs);
  if (ids.empty())
    throw SchedulerError(fmt::format("`{}` succeeded but its answer has no job id: '{}'",
                                     result.command, trim(result.out)),
                         "look for the job in the queue and cancel it by hand; " + script_hint);
  std::vector<JobStatus> out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    JobStatus status;
    status.job_id = ids[i];
    status.reason = "submitted";
    const auto job_log = dialect_->log_path(options_, submission, ids[i]);
    status.log = job_log;
    for (int k = 0; k < options_.processes; ++k) status.worker_ids.push_back(next_worker_id_++);
    jobs_.push_back({.status = status, .job_log = job_log, .submitted = clock_.steady()});
    out.push_back(std::move(status));
  }
  query_pause_ = Seconds(1.0);
  return out;
}

std::vector<JobStatus> JobQueueBackend::submit(int n) {
  if (n <= 0) return {};
  if (options_.check_hosts && !std::exchange(hosts_checked_, true))
    if (const std::string why = dialect_->impossible(options_, runner_); !why.empty())
      throw SchedulerError(why, "ask for less; check_hosts: false waits for hosts that come later");
  make_private_folder(launch_.run_folder / "scripts");
  make_own_folder(launch_.run_folder / "logs");
  if (options_.log_directory && options_.log_directory->find('$') == std::string::npos)
    make_folders(*options_.log_directory);
  std::vector<JobStatus> out;
  for (const Submission& submission : plan(n)) {
    auto jobs = submit_one(submission);
    const bool resubmitted_all = arrays_refused_ && submission.num_jobs > 1;
    std::move(jobs.begin(), jobs.end(), std::back_inserter(out));
    if (resubmitted_all && static_cast<int>(out.size()) * options_.processes < n) {
      auto rest = submit(n - static_cast<int>(out.size()) * options_.processes);
      std::move(rest.begin(), rest.end(), std::back_inserter(out));
    }
    if (resubmitted_all) break;
  }
  return out;
}

bool JobQueueBackend::due() const {
  return !last_query_ || clock_.steady() - *last_query_ >= query_pause_;
}

void JobQueueBackend::apply(Job& job, const std::map<std::string, QueueState>& states) {
  // The worker's own log says most; a job that died before its worker left words in the job's log
  // only.
  const auto worker_log =
      launch_.run_folder / "logs" / fmt::format("worker-{}.log", job.status.worker_ids.front());
  std::error_code none;
  job.status.log = std::filesystem::exists(worker_log, none) ? worker_log : job.job_log;
  const auto found = states.find(job.status.job_id);
  if (found == states.end()) {
    // Twice missing and old enough: gone without a trace.
    if (++job.times_missing >= 2 && clock_.steady() - job.submitted > kLag) {
      job.over = true;
      job.status.phase = JobPhase::kVanished;
      job.status.reason = "no longer known to the scheduler";
    }
    return;
  }
  job.times_missing = 0;
  job.status.phase = found->second.phase;
  job.status.reason = found->second.reason;
  job.status.preempted = found->second.preempted || job.cancelled_by_us;
  job.over = found->second.phase == JobPhase::kEnded || found->second.phase == JobPhase::kFailed;
}

std::vector<JobStatus> JobQueueBackend::poll() {
  std::vector<std::string> ids;
  for (const Job& job : jobs_)
    if (!job.over) ids.push_back(job.status.job_id);
  std::vector<JobStatus> out;
  if (ids.empty()) return out;
  const bool ask = due();
  if (ask) {
    const auto before = clock_.steady();
    try {
      const auto states = dialect_->query(ids, runner_);
      failed_queries_ = 0;
      std::vector<std::string> stuck;
      for (Job& job : jobs_) {
        if (job.over) continue;
        apply(job, states);
        const auto state = states.find(job.status.job_id);
        if (state != states.end() && state->second.must_remove) stuck.push_back(job.status.job_id);
      }
      if (!stuck.empty()) runner_.run(dialect_->cancel_command(options_, stuck));
    } catch (const SchedulerError& error) {
      // A scheduler that cannot be asked says nothing about our jobs: keep what we knew.
      if (++failed_queries_ == 1 || failed_queries_ % 20 == 0)
        log::warning("cannot ask for the state of our jobs: {}", error.what());
    }
    last_query_ = clock_.steady();
    // At most a twentieth of the time goes into asking; settled queues are asked less often.
    const Seconds cost = *last_query_ - before;
    query_pause_ =
        std::min(kLongestPause,
                 std::max({Seconds(1.0), std::min(query_pause_ * 1.2, kCalmPause), cost * 20.0}));
    if (std::any_of(jobs_.begin(), jobs_.end(),
                    [](const Job& j) { return !j.over && j.status.phase == JobPhase::kPending; }))
      query_pause_ = std::min(query_pause_, std::max(Seconds(2.0), cost * 20.0));
  }
  for (const Job& job : jobs_)
    if (std::find(ids.begin(), ids.end(), job.status.job_id) != ids.end())
      out.push_back(job.status);
  jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.over; }),
              jobs_.end());
  return out;
}

void JobQueueBackend::cancel(const std::vector<std::string>& job_ids) noexcept try {
  std::vector<std::string> ids;
  for (Job& job : jobs_) {
    const bool wanted = job_ids.empty() || std::find(job_ids.begin(), job_ids.end(),
                                                     job.status.job_id) != job_ids.end();
    if (job.over || !wanted) continue;
    job.cancelled_by_us = true;
    ids.push_back(job.status.job_id);
  }
  for (std::size_t at = 0; at < ids.size(); at += kCancelBatch) {
    const std::vector<std::string> batch(
        ids.begin() + static_cast<std::ptrdiff_t>(at),
        ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), at + kCancelBatch)));
    const Command command = dialect_->cancel_command(options_, batch);
    CommandResult result;
    for (int attempt = 0; attempt < 2 && !result.ok(); ++attempt) result = runner_.run(command);
    if (result.ok()) continue;
    // Schedulers also fail when a job had ended already; only jobs still alive are a leak.
    std::vector<std::string> alive;
    try {
      for (const auto& [id, state] : dialect_->query(batch, runner_))
        if (state.phase == JobPhase::kPending || state.phase == JobPhase::kRunning)
          alive.push_back(id);
    } catch (const Error&) {
      alive = batch;  // nobody to ask: name them all
    }
    if (!alive.empty())
      log::warning("jobs may still be in the queue: {} ({})", join(alive, " "), result.describe());
  }
  query_pause_ = Seconds(1.0);
} catch (const std::exception& error) {
  log::warning("cannot cancel jobs: {}", error.what());
}

void JobQueueBackend::adopt(const std::vector<JobStatus>& jobs) {
  // Submitted long ago: one that the scheduler does not know at the first look is gone.
  for (const JobStatus& status : jobs)
    jobs_.push_back({.status = status,
                     .job_log = status.log,
                     .submitted = clock_.steady() - std::chrono::hours(1),
                     .times_missing = 1});
}

std::vector<ScriptPreview> JobQueueBackend::scripts(int n) const {
  std::vector<ScriptPreview> out;
  for (const Submission& submission : plan(n)) {
    const SubmissionText text = dialect_->text(options_, launch_, submission);
    std::string script = text.script;
    for (const auto& [name, content] : text.beside)
      script += fmt::format("\n# --- {}\n{}", (submission.folder / name).string(), content);
    out.push_back({std::move(script), text.submit_line});
  }
  return out;
}

}  // namespace tutti::parallel
