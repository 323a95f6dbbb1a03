#include "tutti/parallel/backends/jobqueue.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/parallel/wire/secrets.h"
#include "tutti/parallel/wire/worker_env.h"

namespace tutti::parallel {
namespace {

constexpr int kMostExportedKeys = 64;  // of one submission: 100 letters each

using namespace std::chrono_literals;

// Refusals that pass by themselves: a busy controller, not a wrong request.
bool is_transient(const CommandResult& result) {
  static const char* const kWords[] = {"temporarily unavailable",
                                       "slurm_persist_conn",
                                       "Unable to establish",
                                       "TLS handshake timeout",
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
// Unknown is not dead: a scheduler that comes back from a restart may know nothing for a while.
constexpr Seconds kVanished{60.0};
constexpr int kLooksToVanish = 3;
constexpr Seconds kUnsure{300.0};         // where a submission cannot be looked for by its script
constexpr std::size_t kQueryBatch = 500;  // ids in one command
constexpr Seconds kLongestPause{30.0};    // for a scheduler that is slow to answer
constexpr Seconds kCalmPause{4.0};        // when nothing changes
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
  int most = options_.job_array && !arrays_refused_ ? dialect_->max_array() : 1;
  // Jobs of one array share their environment, and with it each other's keys; and there is little
  // room in it.
  if (options_.export_keys)
    most = std::min(most, std::max(1, kMostExportedKeys / options_.processes));
  for (int i = next_submission_; jobs_left > 0; ++i) {
    Submission submission;
    submission.num_jobs = std::min(jobs_left, most);
    submission.first_worker_id = first;
    submission.folder = launch_.run_folder / "scripts";
    submission.stem = stem(i);
    submission.log_folder = launch_.run_folder / "logs";
    submission.avoid = avoid_;
    first += submission.num_jobs * options_.processes;
    jobs_left -= submission.num_jobs;
    out.push_back(std::move(submission));
  }
  return out;
}

std::string JobQueueBackend::stem(int number) const {
  return launch_.life.empty() ? fmt::format("job-{}", number)
                              : fmt::format("job-{}-{}", launch_.life, number);
}

CommandResult JobQueueBackend::run_submit(const Command& command) {
  CommandResult result;
  for (const auto pause : {500ms, 2000ms, 0ms}) {
    result = runner_.run(command);
    // Out of time is no refusal: it may have been accepted, and must not be repeated blindly.
    if (result.ok() || result.timed_out || !is_transient(result) || pause == 0ms) return result;
    log::warning("{}; trying again", result.describe());
    std::this_thread::sleep_for(pause);
  }
  return result;
}

std::vector<JobStatus> JobQueueBackend::submit_one(const Submission& submission) {
  SubmissionText text = dialect_->text(options_, launch_, submission);
  // Some schedulers give jobs our environment: a worker's successor must not die with it.
  text.submit.unset_env.emplace_back(worker_env::kMark);
  if (launch_.keys != nullptr) {
    std::vector<int> ids(static_cast<std::size_t>(submission.num_jobs * options_.processes));
    std::iota(ids.begin(), ids.end(), submission.first_worker_id);
    launch_.keys->issue(ids);
    if (options_.export_keys) text.submit.env[kConnectVariable] = launch_.keys->variable(ids);
  }
  for (const auto& [name, content] : text.beside)
    write_file_atomic(submission.folder / name, content, 0700);
  write_file_atomic(submission.folder / (submission.stem + text.script_suffix), text.script, 0700);
  ++next_submission_;
  const CommandResult result = run_submit(text.submit);
  if (!result.ok() && !result.timed_out && submission.num_jobs > 1 && is_about_arrays(result)) {
    log::warning("{}; submitting jobs one by one", result.describe());
    arrays_refused_ = true;
    return submit(submission.num_jobs * options_.processes);
  }
  const std::string script = (submission.folder / (submission.stem + text.script_suffix)).string();
  const std::string script_hint = fmt::format("the script is {}", script);
  if (!result.ok() && !result.timed_out) {
    if (result.exit_code == 127)
      throw SchedulerError(
          result.describe(),
          fmt::format("run on a host with the {} commands, or use another parallel.env",
                      scheduler_name(dialect_->kind())));
    if (is_transient(result)) throw SchedulerUnreachable(result.describe(), script_hint);
    throw SchedulerError(result.describe(), script_hint);
  }
  if (result.ok()) {
    const auto ids = dialect_->parse_submit(result, submission.num_jobs);
    if (!ids.empty()) return take_in(submission, ids);
  }
  unsure_.push_back({submission, script, clock_.steady()});
  next_worker_id_ += submission.num_jobs * options_.processes;  // theirs, should they turn up
  if (auto found = settle_unsure(); !found.empty()) return found;
  if (result.timed_out) throw SchedulerUnreachable(result.describe(), script_hint);
  throw SchedulerError(fmt::format("`{}` succeeded but its answer has no job id: '{}'",
                                   result.command, trim(result.out)),
                       "look for the job in the queue and cancel it by hand; " + script_hint);
}

std::vector<JobStatus> JobQueueBackend::take_in(const Submission& submission,
                                                const std::vector<std::string>& ids) {
  std::vector<JobStatus> out;
  int worker = submission.first_worker_id;
  for (const std::string& id : ids) {
    JobStatus status;
    status.job_id = id;
    status.reason = "submitted";
    const auto job_log = dialect_->log_path(options_, submission, id);
    status.log = job_log;
    for (int k = 0; k < options_.processes; ++k) status.worker_ids.push_back(worker++);
    jobs_.push_back({.status = status, .job_log = job_log, .submitted = clock_.steady()});
    out.push_back(std::move(status));
  }
  next_worker_id_ = std::max(next_worker_id_, worker);
  query_pause_ = Seconds(1.0);
  return out;
}

// Looks for submissions that had no answer: those the scheduler has are taken in, those it does not
// have after a while are forgotten.
std::vector<JobStatus> JobQueueBackend::settle_unsure() {
  std::vector<JobStatus> found;
  if (unsure_.empty()) return found;
  const auto now = clock_.steady();
  try {
    const auto known = dialect_->find(runner_);
    for (Unsure& unsure : unsure_) {
      std::vector<std::string> ids;
      for (const FoundJob& job : known.value_or(std::vector<FoundJob>{}))
        if (job.script == unsure.script) ids.push_back(job.id);
      if (known) ++unsure.answers_without_it;
      if (static_cast<int>(ids.size()) != unsure.submission.num_jobs) continue;
      std::sort(ids.begin(), ids.end(), [](const std::string& a, const std::string& b) {
        return std::pair(a.size(), a) < std::pair(b.size(), b);  // 7_2 before 7_10
      });
      log::info("{}: found as job {} in the queue", unsure.script, ids.front());
      auto jobs = take_in(unsure.submission, ids);
      std::move(jobs.begin(), jobs.end(), std::back_inserter(found));
      unsure.submission.num_jobs = 0;
    }
  } catch (const SchedulerError& error) {
    log::warning("cannot look for a submission without an answer: {}", error.what());
  }
  std::erase_if(unsure_, [&](const Unsure& unsure) {
    return unsure.submission.num_jobs == 0 || now - unsure.since > kUnsure ||
           (unsure.answers_without_it >= 2 && now - unsure.since > kLag);
  });
  return found;
}

std::vector<JobStatus> JobQueueBackend::submit(int n) {
  if (n <= 0) return {};
  std::vector<JobStatus> out = settle_unsure();
  if (!unsure_.empty())
    throw SchedulerUnreachable("an earlier submission has had no answer yet: " +
                               unsure_.front().script);
  n -= static_cast<int>(out.size()) * options_.processes;
  if (n <= 0) return out;
  if (options_.check_hosts && !std::exchange(hosts_checked_, true))
    if (const std::string why = dialect_->impossible(options_, runner_); !why.empty())
      throw SchedulerError(why, "ask for less; check_hosts: false waits for hosts that come later");
  make_private_folder(launch_.run_folder / "scripts");
  make_own_folder(launch_.run_folder / "logs");
  if (options_.log_directory && options_.log_directory->find('$') == std::string::npos)
    make_folders(*options_.log_directory);
  const int num_found = static_cast<int>(out.size());
  for (const Submission& submission : plan(n)) {
    auto jobs = submit_one(submission);
    const bool resubmitted_all = arrays_refused_ && submission.num_jobs > 1;
    std::move(jobs.begin(), jobs.end(), std::back_inserter(out));
    const int have = (static_cast<int>(out.size()) - num_found) * options_.processes;
    if (resubmitted_all && have < n) {
      auto rest = submit(n - have);
      std::move(rest.begin(), rest.end(), std::back_inserter(out));
    }
    if (resubmitted_all) break;
  }
  return out;
}

bool JobQueueBackend::due() const {
  return !last_query_ || clock_.steady() - *last_query_ >= query_pause_;
}

std::filesystem::path JobQueueBackend::worker_log(int worker) const {
  return launch_.run_folder / "logs" / fmt::format("worker-{}.log", worker);
}

void JobQueueBackend::apply(Job& job, const std::map<std::string, QueueState>& states) {
  // The worker's own log says most; a job that died before its worker left words in the job's log
  // only.
  const auto own = worker_log(job.status.worker_ids.empty() ? -1 : job.status.worker_ids.front());
  std::error_code none;
  job.status.log = std::filesystem::exists(own, none) ? own : job.job_log;
  const auto found = states.find(job.status.job_id);
  if (found == states.end()) {
    if (++job.times_missing == 1) job.missing_since = clock_.steady();
    if (job.times_missing >= kLooksToVanish && clock_.steady() - job.missing_since >= kVanished &&
        clock_.steady() - job.submitted > kLag) {
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
  if (!found->second.node.empty()) job.status.node = found->second.node;
  job.over = found->second.phase == JobPhase::kEnded || found->second.phase == JobPhase::kFailed;
}

void JobQueueBackend::ask_for_states(const std::vector<std::string>& jobs) {
  std::vector<std::string> ids = jobs;
  ids.insert(ids.end(), stuck_.begin(), stuck_.end());
  std::map<std::string, QueueState> states;
  for (std::size_t at = 0; at < ids.size(); at += kQueryBatch) {
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(at);
    const auto last =
        ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), at + kQueryBatch));
    states.merge(dialect_->query({first, last}, runner_));
  }
  std::erase_if(stuck_, [&](const std::string& id) {
    const auto state = states.find(id);
    return state == states.end() || !state->second.in_queue();
  });
  for (Job& job : jobs_) {
    if (job.over) continue;
    apply(job, states);
    const auto state = states.find(job.status.job_id);
    if (state != states.end() && state->second.must_remove) stuck_.push_back(job.status.job_id);
  }
  if (!stuck_.empty() && runner_.run(dialect_->cancel_command(options_, stuck_)).ok())
    stuck_.clear();
}

std::vector<JobStatus> JobQueueBackend::poll() {
  std::vector<std::string> ids;
  for (const Job& job : jobs_)
    if (!job.over) ids.push_back(job.status.job_id);
  std::vector<JobStatus> out;
  if (ids.empty() && unsure_.empty() && stuck_.empty()) return out;
  if (due()) {
    const auto before = clock_.steady();
    settle_unsure();
    try {
      if (!ids.empty() || !stuck_.empty()) ask_for_states(ids);
      failed_queries_ = 0;
      unanswered_.clear();
    } catch (const SchedulerError& error) {
      // A scheduler that cannot be asked says nothing about our jobs: keep what we knew. Of an
      // asynchronous run whoever looks tells so.
      unanswered_ = error.what();
      if (!launch_.outlives_driver && (++failed_queries_ == 1 || failed_queries_ % 20 == 0))
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
  for (const Job& job : jobs_) out.push_back(job.status);
  std::erase_if(jobs_, [](const Job& job) { return job.over; });
  return out;
}

bool JobQueueBackend::cancel(const std::vector<std::string>& job_ids) noexcept try {
  if (job_ids.empty()) settle_unsure();  // nothing stays in the queue because it had no answer
  const std::set<std::string> wanted(job_ids.begin(), job_ids.end());
  std::vector<std::string> ids;
  std::vector<std::string> may_return;
  for (Job& job : jobs_) {
    if (job.over || (!wanted.empty() && !wanted.contains(job.status.job_id))) continue;
    job.cancelled_by_us = true;
    ids.push_back(job.status.job_id);
    if (!has_begun(job)) may_return.push_back(job.status.job_id);
  }
  if (job_ids.empty()) ids.insert(ids.end(), stuck_.begin(), stuck_.end());
  query_pause_ = Seconds(1.0);
  const std::vector<std::string> left = cancel_ids(ids, may_return);
  if (job_ids.empty())
    std::erase_if(stuck_, [&](const std::string& id) {
      return std::find(left.begin(), left.end(), id) == left.end();
    });
  const bool all_gone = left.empty();
  if (job_ids.empty())
    for (const Unsure& unsure : unsure_)
      log::warning("{} may still be in the queue: its submission has had no answer", unsure.script);
  return all_gone && (unsure_.empty() || !job_ids.empty());
} catch (const std::exception& error) {
  log::warning("cannot cancel jobs: {}", error.what());
  return false;
}

// One of its workers has begun to write. Not so after the job was put back into the queue.
bool JobQueueBackend::has_begun(const Job& job) const {
  return job.status.phase == JobPhase::kRunning &&
         std::any_of(job.status.worker_ids.begin(), job.status.worker_ids.end(), [&](int worker) {
           std::error_code none;
           return std::filesystem::exists(worker_log(worker), none);
         });
}

std::vector<std::string> JobQueueBackend::cancel_ids(const std::vector<std::string>& ids,
                                                     const std::vector<std::string>& may_return) {
  for (const Command& command : dialect_->forbid_return(may_return))
    if (runner_.run(command).timed_out) break;  // nobody is there
  std::vector<std::string> left;
  for (std::size_t at = 0; at < ids.size(); at += kCancelBatch) {
    const std::vector<std::string> batch(
        ids.begin() + static_cast<std::ptrdiff_t>(at),
        ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), at + kCancelBatch)));
    const Command command = dialect_->cancel_command(options_, batch);
    CommandResult result;
    for (int attempt = 0; attempt < 2 && !result.ok() && !result.timed_out; ++attempt)
      result = runner_.run(command);
    if (result.ok()) continue;
    // Schedulers also fail when a job had ended already; only jobs still alive are a leak.
    std::vector<std::string> alive;
    try {
      for (const auto& [id, state] : dialect_->query(batch, runner_))
        if (state.in_queue()) alive.push_back(id);
    } catch (const Error&) {
      alive = batch;  // nobody to ask: name them all
    }
    if (alive.empty()) continue;
    log::warning("jobs may still be in the queue: {} ({})", join(alive, " "), result.describe());
    left.insert(left.end(), alive.begin(), alive.end());
  }
  return left;
}

LeftOver JobQueueBackend::cancel_left_over(const std::string& life,
                                           const std::vector<std::string>& job_ids) {
  std::set<std::string> ids;
  try {
    const std::string prefix =
        (launch_.run_folder / "scripts" / fmt::format("job-{}-", life)).string();
    const auto known = dialect_->find(runner_);
    const std::set<std::string> noted(job_ids.begin(), job_ids.end());
    for (const FoundJob& job : known.value_or(std::vector<FoundJob>{}))
      if (job.script.starts_with(prefix) || noted.contains(job.id)) ids.insert(job.id);
    // What was noted and has ended needs no command.
    for (std::size_t at = 0; !known && at < job_ids.size(); at += kQueryBatch) {
      const auto first = job_ids.begin() + static_cast<std::ptrdiff_t>(at);
      const auto last =
          job_ids.begin() + static_cast<std::ptrdiff_t>(std::min(job_ids.size(), at + kQueryBatch));
      for (const auto& [id, state] : dialect_->query({first, last}, runner_))
        if (state.in_queue()) ids.insert(id);
    }
  } catch (const SchedulerError& error) {
    log::warning("cannot look for jobs of an earlier driver: {}", error.what());
    if (job_ids.empty()) return {.unknown = true};
    ids.insert(job_ids.begin(), job_ids.end());
  }
  if (ids.empty()) return {};
  log::warning("an earlier driver of this folder has left {} job{} in the queue; cancelling",
               ids.size(), ids.size() == 1 ? "" : "s");
  const std::vector<std::string> all(ids.begin(), ids.end());
  return {.found = all.size(), .left = cancel_ids(all, all)};
}

void JobQueueBackend::adopt(const std::vector<JobStatus>& jobs) {
  // Submitted long ago: one that the scheduler does not know at the first look is gone.
  const auto long_ago = clock_.steady() - std::chrono::hours(1);
  for (const JobStatus& status : jobs)
    jobs_.push_back({.status = status,
                     .job_log = status.log,
                     .submitted = long_ago,
                     .times_missing = kLooksToVanish - 1,
                     .missing_since = long_ago});
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
