#include "tutti/parallel/async/run.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/short_patience.h"
#include "tutti/parallel/registry.h"
#include "tutti/parallel/run/run_plan.h"
#include "tutti/parallel/wire/log_tail.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr double kWatch =
    40;  // a worker of another host whose beat stands still for so long is dead
constexpr double kStartGraceSeconds = 15;  // from submission to the first heartbeat, locally

bool is_local(const ParallelSettings& settings) {
  return settings.env == "local" || settings.env == "local_gpu";
}

WorkerLaunch worker_launch(const fs::path& output_folder, const AsyncJob& job) {
  WorkerLaunch launch;
  launch.command = job.program;
  launch.command.insert(launch.command.end(),
                        {"worker", "--run", output_folder.string(), "--async", job.generation});
  launch.run_folder = output_folder;
  launch.outlives_driver = true;
  return launch;
}

void note_jobs(const fs::path& output_folder, const std::vector<JobStatus>& jobs) {
  for (const JobStatus& job : jobs) {
    Json json = {{"job_id", job.job_id}, {"worker_ids", job.worker_ids}, {"log", job.log.string()}};
    if (job.phase == JobPhase::kFailed || job.phase == JobPhase::kEnded)
      json["ended"] = {{"ok", job.phase == JobPhase::kEnded}, {"reason", job.reason}};
    write_file_quickly(
        async_folder(output_folder) / "jobs" / fmt::format("{}", job.worker_ids.front()),
        to_json_line(json) + "\n");
  }
}

std::vector<JobStatus> noted_jobs(const fs::path& output_folder) {
  std::vector<JobStatus> jobs;
  std::error_code ignored;  // no folder: none
  for (const auto& entry : fs::directory_iterator(async_folder(output_folder) / "jobs", ignored)) {
    if (entry.path().filename().string().starts_with(".")) continue;
    const Json json = parse_json(read_file(entry.path()), entry.path().string());
    JobStatus job;
    job.job_id = json.value("job_id", "");
    job.worker_ids = json.value("worker_ids", std::vector<int>{});
    job.log = json.value("log", "");
    if (json.contains("ended")) {
      job.phase = json["ended"].value("ok", false) ? JobPhase::kEnded : JobPhase::kFailed;
      job.reason = json["ended"].value("reason", "");
    }
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const JobStatus& a, const JobStatus& b) { return a.worker_ids < b.worker_ids; });
  return jobs;
}

// Ids of workers are only names of logs, but two jobs must not write one log.
int reserve_ids(const fs::path& output_folder, int count) {
  const fs::path folder = async_folder(output_folder) / "ids";
  int first = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    first = std::max(first, std::atoi(entry.path().filename().c_str()));
  while (::mkdir((folder / std::to_string(first + count)).c_str(), 0755) != 0) {
    if (errno != EEXIST) throw_errno("cannot create a folder in " + folder.string(), errno);
    first += count;
  }
  return first;  // ids first .. first+count-1; the folder's name is one past them
}

bool pieces_done(const fs::path& folder, const AsyncJob& job) {
  ClaimBoard board(folder, job.pieces.size() + 1);
  board.refresh();
  for (std::size_t p = 0; p < job.pieces.size(); ++p)
    if (!board.is_done(p)) return false;
  return true;
}

// Whether a worker of this machine, or who keeps one alive, is there though no heartbeat is: on a busy
// machine a program with large libraries takes longer to load than any grace. Empty: that cannot be
// known, as they are another machine's or just being started.
std::optional<bool> starts_here(const fs::path& output_folder, const AsyncJob& job) {
  const bool of_this_machine = is_local(job.settings) && job.submitter.alive().has_value();
  if (!of_this_machine || noted_jobs(output_folder).empty()) return std::nullopt;
  std::error_code ignored;  // no /proc: nobody is seen
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    try {
      if (read_file(entry.path() / "cmdline").find(job.generation) != std::string::npos)
        return true;
    } catch (const IoError&) {  // it has ended, or is none of ours
    }
  }
  return false;
}

std::vector<std::string> ids_of(const std::vector<JobStatus>& jobs) {
  std::vector<std::string> ids;
  for (const JobStatus& job : jobs) ids.push_back(job.job_id);
  return ids;
}

// On one line, as the manifest keeps reasons.
std::string last_words(const fs::path& log) {
  const std::string tail = log_tail(log);
  return tail.empty()
             ? ""
             : fmt::format("; {} ends with: {}", log.string(), tail.substr(tail.rfind('\n') + 1));
}

// Jobs that began and were over before a worker of theirs was ready; empty: there are none.
std::string about_stillborn(const std::vector<JobStatus>& ended,
                            const std::vector<WorkerNote>& workers) {
  std::vector<const JobStatus*> stillborn;
  for (const JobStatus& job : ended) {
    std::error_code none;  // no log: it was taken out of the queue
    if (fs::exists(job.log, none) &&
        std::none_of(workers.begin(), workers.end(), [&](const WorkerNote& note) {
          return note.phase != "building" &&
                 std::count(job.worker_ids.begin(), job.worker_ids.end(), note.id) > 0;
        }))
      stillborn.push_back(&job);
  }
  if (stillborn.empty()) return "";
  const JobStatus& last = *stillborn.back();
  const std::string words = last_words(last.log);
  return fmt::format("{} ended before {} ready, the last one: job {}: {}{}; {}",
                     stillborn.size() == 1 ? "a job" : fmt::format("{} jobs", stillborn.size()),
                     stillborn.size() == 1 ? "its worker was" : "their workers were", last.job_id,
                     last.reason.empty() ? "it ended without an error" : last.reason,
                     words.empty() ? fmt::format("; {} says nothing", last.log.string()) : words,
                     kStillbornAdvice);
}

// Processes of a local run that are gone without a heartbeat; empty: there were none.
std::string about_unseen(const std::vector<JobStatus>& noted) {
  if (noted.empty()) return "";
  return fmt::format("{} gone and never began{}",
                     noted.size() == 1
                         ? fmt::format("its worker (process {}) is", noted[0].job_id)
                         : fmt::format("its workers (processes {}) are", join(ids_of(noted), ", ")),
                     last_words(noted.back().log));
}

// Some refusals come after the submission: one look, as nobody else will.
void refuse_if_none_can_run(Backend& backend, const std::vector<JobStatus>& jobs,
                            const fs::path& output_folder) {
  std::vector<JobStatus> refused;
  try {
    for (JobStatus& status : backend.poll())
      if (status.phase == JobPhase::kFailed) refused.push_back(std::move(status));
  } catch (const Cancelled& stopped) {
    throw Cancelled(stopped.exit_code() == ExitCode::kInterrupted ? Cancelled::By::kUser
                                                                  : Cancelled::By::kSignal,
                    fmt::format("the scheduler had not answered yet whether the jobs can run; they "
                                "are submitted: {}",
                                join(ids_of(jobs), " ")),
                    fmt::format("tutti status {0} follows them, tutti cancel {0} takes them out of "
                                "the queue",
                                output_folder.string()));
  }
  if (!jobs.empty() && refused.size() == jobs.size())
    throw SchedulerError(fmt::format("job {} cannot run: {}{}", refused[0].job_id,
                                     refused[0].reason, last_words(refused[0].log)));
  if (const std::string why = backend.unanswered(); !why.empty())
    log::warning("the jobs are submitted; the scheduler does not answer whether they can run: {}",
                 why);
}

void withdraw(RunFolder& folder, Backend* backend, ShortPatience& scheduler,
              const std::function<Json(std::uint64_t)>& item_of, const std::exception& error) {
  scheduler.ignore_signals();
  scheduler.patient(false);
  if (backend != nullptr) backend->cancel();  // what was accepted before the refusal
  remove_async(folder.path());
  const auto* refused = dynamic_cast<const SchedulerError*>(&error);
  folder.stop(item_of, error.what(),
              refused != nullptr ? static_cast<int>(refused->exit_code()) : 0);
}

}  // namespace

std::vector<JobStatus> submit_async(RunFolder& folder, const ParallelSettings& settings,
                                    const JobSpec& job, const Indices& indices,
                                    const RunOptions& options, const AsyncOptions& async_options) {
  AsyncJob run;
  std::random_device random;
  run.generation = fmt::format("{:08x}{:08x}", random(), random());
  const RunPlan plan = make_plan(settings, job, options, folder.remaining());
  run.spec = plan.spec;
  run.fingerprint_hash = folder.hash();
  run.indices = indices;
  run.settings = settings;
  run.settings.max_retries = plan.max_retries;
  run.settings.on_error = plan.on_error;
  run.pieces = cut_into_pieces(plan.work, settings.n_workers, run.spec.batch_size);
  run.item_names = async_options.item_names;
  run.program = async_options.program.empty() ? std::vector<std::string>{own_program().string()}
                                              : async_options.program;
  run.beat_s = async_options.beat_s;
  run.stale_s = async_options.stale_s > 0 ? async_options.stale_s : (is_local(settings) ? 3 : 20);
  run.submitted = Clock::system().unix_seconds();
  run.submitter = ProcessIdentity::self();
  const fs::path shared = async_folder(folder.path());
  make_private_folder(shared);
  for (const char* name : {"claims", "workers", "jobs", "ids"}) make_private_folder(shared / name);
  run.write(shared);
  std::optional<SignalWatch> signals;
  if (options.handle_signals) signals.emplace();
  ShortPatience scheduler(signals ? &*signals : nullptr);
  std::unique_ptr<Backend> backend;
  std::vector<JobStatus> jobs;
  try {
    backend = make_backend(settings, worker_launch(folder.path(), run), scheduler);
    scheduler.patient(true);
    jobs = backend->submit(plan.n_workers);
    scheduler.patient(false);
    int ids = 0;
    for (const JobStatus& one : jobs)
      for (const int id : one.worker_ids) ids = std::max(ids, id + 1);
    make_folders(shared / "ids" / std::to_string(ids));
    note_jobs(folder.path(), jobs);
    if (async_options.on_submitted) async_options.on_submitted(jobs);
    refuse_if_none_can_run(*backend, jobs, folder.path());
  } catch (const std::exception& error) {
    // A refused submission leaves the folder as it was, but for the reason. After a signal jobs that
    // are noted go on without us.
    if (jobs.empty() || dynamic_cast<const Cancelled*>(&error) == nullptr)
      withdraw(folder, backend.get(), scheduler, make_item_of(run.item_names, indices), error);
    throw;
  }
  return jobs;
}

void submit_successor(const fs::path& output_folder, const AsyncJob& job) {
  WorkerLaunch launch = worker_launch(output_folder, job);
  launch.first_worker_id = reserve_ids(output_folder, std::max(1, workers_per_job(job.settings)));
  const auto backend = make_backend(job.settings, launch, CommandRunner::system());
  note_jobs(output_folder, backend->submit(1));
}

namespace {

// What changes while anybody works: jobs come, heartbeats go on.
std::vector<std::pair<std::string, std::uint64_t>> signs_of_life(const fs::path& output_folder) {
  std::vector<std::pair<std::string, std::uint64_t>> signs;
  for (const JobStatus& job : noted_jobs(output_folder)) signs.emplace_back(job.job_id, 0);
  for (const WorkerNote& note : read_worker_notes(async_folder(output_folder)))
    signs.emplace_back(note.name, note.beat);
  return signs;
}

// What the scheduler says of the jobs. How they ended is kept in the folder, as schedulers forget
// it within minutes.
void look_at_jobs(const fs::path& output_folder, const AsyncJob& job, CommandRunner& runner,
                  AsyncState& state) {
  const auto backend = make_backend(job.settings, worker_launch(output_folder, job), runner);
  const std::vector<JobStatus> noted = noted_jobs(output_folder);
  std::map<std::string, JobStatus> ended;
  for (const JobStatus& one : noted)
    if (one.phase != JobPhase::kPending) ended[one.job_id] = one;
  backend->adopt(noted);
  for (JobStatus& status : backend->poll()) {
    if (status.phase == JobPhase::kPending || status.phase == JobPhase::kRunning) {
      ended.erase(status.job_id);
      state.jobs.push_back(std::move(status));
    } else if (!ended.contains(status.job_id)) {
      ended[status.job_id] = status;
      try {
        note_jobs(output_folder, {status});
      } catch (const IoError&) {  // a full disk, or one for reading only: it is told now at least
      }
    }
  }
  for (auto& [id, status] : ended) state.ended.push_back(std::move(status));
  state.unanswered = backend->unanswered();
}

// Workers of other hosts that nobody has watched: those whose jobs have ended are gone.
void drop_ended(const fs::path& output_folder, const AsyncJob& job, CommandRunner& runner,
                std::vector<WorkerNote>& workers) {
  AsyncState known;
  look_at_jobs(output_folder, job, runner, known);
  std::set<std::string> ended;
  for (const JobStatus& one : known.ended) ended.insert(one.job_id);
  std::erase_if(workers, [&](const WorkerNote& note) { return ended.contains(note.job_id); });
}

AsyncState state_at_one_look(const fs::path& output_folder, const AsyncJob& job, bool ask_scheduler,
                             BeatWatch& watch, bool only_look, CommandRunner& runner) {
  const fs::path folder = async_folder(output_folder);
  AsyncState state;
  const auto stop = stop_requested(folder);
  bool any_seen_alive = false;
  std::optional<WorkerNote> gave_up;  // the first that could not go on
  const std::vector<WorkerNote> notes = read_worker_notes(folder);
  for (const WorkerNote& note : notes) {
    if (note.exit_code != 0 && !gave_up) gave_up = note;
    state.coming_back = state.coming_back || note.comes_back();
    // One that was stopped will not hear of the run's end before it is woken; then it leaves.
    if (stop && note.process.stands_still()) continue;
    const auto sign = note.sign_of_life(watch);
    any_seen_alive = any_seen_alive || sign == BeatWatch::Sign::kAlive;
    if (sign != BeatWatch::Sign::kDead) state.workers.push_back(note);
  }
  if (only_look && !any_seen_alive && !state.workers.empty() && ask_scheduler &&
      !is_local(job.settings))
    drop_ended(output_folder, job, runner, state.workers);
  state.sure = any_seen_alive || state.workers.empty();
  // Thousands of claims are read only when the answer matters.
  if (state.workers.empty() && !state.coming_back) state.all_pieces_done = pieces_done(folder, job);
  const std::string written = read_manifest(output_folder).value("state", "");
  if (stop) {
    state.reason = stop->reason;
    state.exit_code = stop->exit_code;
  }
  if (written == "done") {
    state.state = "done";
  } else if (!state.workers.empty() || state.coming_back) {
    state.state = "running";
  } else {
    if (ask_scheduler && !is_local(job.settings)) look_at_jobs(output_folder, job, runner, state);
    const auto failed = std::find_if(state.ended.begin(), state.ended.end(), [](const auto& one) {
      return one.phase == JobPhase::kFailed;
    });
    const bool in_grace = Clock::system().unix_seconds() - job.submitted < kStartGraceSeconds;
    const bool starts = notes.empty() && starts_here(output_folder, job).value_or(in_grace);
    if (!stop && (!state.jobs.empty() || starts)) {
      state.state = "queued";
      if (!state.jobs.empty()) state.reason = state.jobs.front().reason;
    } else {
      state.state = stop || written == "stopped" ? "stopped" : "died";
      if (!stop && gave_up) {
        state.reason = gave_up->error;
        state.exit_code = gave_up->exit_code;
      }
      if (state.reason.empty()) {
        state.reason = about_stillborn(state.ended, notes);
        if (!state.reason.empty()) state.exit_code = static_cast<int>(ExitCode::kScheduler);
      }
      if (state.reason.empty() && failed != state.ended.end())
        state.reason = fmt::format("job {}: {}", failed->job_id, failed->reason);
      if (state.reason.empty() && notes.empty() && is_local(job.settings))
        state.reason = about_unseen(noted_jobs(output_folder));
    }
  }
  return state;
}

}  // namespace

std::optional<AsyncState> async_state(const fs::path& output_folder, bool ask_scheduler,
                                      BeatWatch* watch, CommandRunner& runner) {
  const fs::path folder = async_folder(output_folder);
  std::error_code ignored;  // absent: an ordinary answer
  if (!fs::exists(folder / "job.json", ignored)) return std::nullopt;
  const AsyncJob job = AsyncJob::read(folder);
  // A scheduler may take seconds to answer, and short jobs come and go meanwhile: nobody is dead
  // while something changes.
  BeatWatch first_look(kWatch);
  for (int look = 0;; ++look) {
    const auto before = signs_of_life(output_folder);
    AsyncState state =
        state_at_one_look(output_folder, job, ask_scheduler, watch != nullptr ? *watch : first_look,
                          watch == nullptr, runner);
    if (state.state != "died" || look == 9 || signs_of_life(output_folder) == before) return state;
  }
}

FolderCounts write_async_results(const fs::path& output_folder, const AsyncJob& job) {
  const FolderCounts counts = write_results(output_folder, job.fingerprint_hash, job.indices,
                                            make_item_of(job.item_names, job.indices), nullptr);
  if (counts.missing() > 0) {
    const std::string reason = fmt::format(
        "{} items that were done have no record in {} any more: somebody removed a "
        "journal while the run was going; run the same command again",
        counts.missing(), (output_folder / "journal").string());
    log::error("{}", reason);
    request_stop(async_folder(output_folder),
                 {.exit_code = static_cast<int>(ExitCode::kIo), .reason = reason});
    update_manifest(output_folder, "stopped", counts);
    return counts;
  }
  if (const std::string& name = job.spec.finisher; !name.empty()) {
    // The results are whole whatever becomes of it; the next run in the folder calls it again.
    try {
      const Finisher finisher = Registry::global().finisher(name);
      if (finisher == nullptr)
        log::warning("run the command again that began {}: {} has still to be called",
                     output_folder.string(), name);
      else
        finisher(output_folder, job.spec.finisher_params);
    } catch (const Error& error) {
      log::error("{}: {}: {}", output_folder.string(), name, error.what());
    }
  }
  update_manifest(output_folder, "done", counts);
  return counts;
}

void settle_async(const fs::path& output_folder, BeatWatch* watch, CommandRunner& runner) {
  const auto state = async_state(output_folder, false, watch);
  if (!state || !state->workers.empty() || state->coming_back || state->state == "done") return;
  const AsyncJob job = AsyncJob::read(async_folder(output_folder));
  remove_leftovers(output_folder);  // nobody is at work
  if (state->all_pieces_done)
    write_async_results(output_folder, job);
  else if (state->state == "stopped")
    mark_async_stopped(output_folder, job);
  else
    return;  // queued, or dead without a word: it can go on
  take_out_of_queue(output_folder, job, false, runner);
}

std::vector<std::string> take_out_of_queue(const fs::path& output_folder, const AsyncJob& job,
                                           bool running_too, CommandRunner& runner) {
  if (is_local(job.settings)) return {};
  const auto backend = make_backend(job.settings, worker_launch(output_folder, job), runner);
  std::vector<JobStatus> noted = noted_jobs(output_folder);
  // What is over for us may still lie there: pods whose image cannot be had wait for ever.
  for (JobStatus& status : noted) status.phase = JobPhase::kPending;
  backend->adopt(noted);
  const std::vector<JobStatus> jobs = backend->poll();
  std::set<int> begun;  // the workers' own word, where the scheduler gives none
  if (const std::string why = backend->unanswered(); !why.empty()) {
    log::warning("the scheduler does not answer which jobs wait: {}", why);
    for (const WorkerNote& note : read_worker_notes(async_folder(output_folder)))
      begun.insert(note.id);
  }
  std::vector<std::string> unwanted;
  for (const JobStatus& status : jobs)
    if (running_too || (status.phase == JobPhase::kPending &&
                        std::none_of(status.worker_ids.begin(), status.worker_ids.end(),
                                     [&](int id) { return begun.contains(id); })))
      unwanted.push_back(status.job_id);
  return unwanted.empty() || backend->cancel(unwanted) ? std::vector<std::string>{} : unwanted;
}

void mark_async_stopped(const fs::path& output_folder, const AsyncJob& job) {
  if (read_manifest(output_folder).value("state", "") == "done") return;
  const FolderCounts counts = count_items(output_folder);
  if (counts.failed > 0)  // the reason is there to read
    write_results(output_folder, job.fingerprint_hash, job.indices,
                  make_item_of(job.item_names, job.indices), nullptr, true);
  update_manifest(output_folder, "stopped", counts);
}

std::vector<std::string> cancel_async(const fs::path& output_folder, bool now,
                                      CommandRunner& runner) {
  const fs::path folder = async_folder(output_folder);
  const AsyncJob job = AsyncJob::read(folder);
  request_stop(folder, {.now = now, .exit_code = 0, .reason = "tutti cancel"});
  auto left = take_out_of_queue(output_folder, job, now, runner);
  BeatWatch watch(kWatch);
  for (;;) {
    const auto state = async_state(output_folder, false, &watch);
    if (!state || (state->workers.empty() && !state->coming_back)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  remove_leftovers(output_folder);
  mark_async_stopped(output_folder, job);
  return left;
}

void refuse_if_async_alive(const fs::path& output_folder) {
  BeatWatch watch(kWatch);
  ShortPatience scheduler;
  auto state = async_state(output_folder, true, &watch, scheduler);
  // The workers of a run that is over are on their way out; those of other hosts must be watched.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (
      state && !state->workers.empty() &&
      (!state->sure || (state->state == "done" && std::chrono::steady_clock::now() < deadline))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    state = async_state(output_folder, state->sure, &watch, scheduler);
  }
  if (!state) return;
  const std::string fix = "wait for it (tutti wait), stop it (tutti cancel), or use another folder";
  if (!state->workers.empty())
    throw IoError(
        fmt::format("{} is in use by {} asynchronous workers, one of them process {} on "
                    "{}",
                    output_folder.string(), state->workers.size(),
                    state->workers.front().process.pid, state->workers.front().process.host),
        fix);
  if (state->state == "queued")
    throw IoError(
        fmt::format("{} waits for jobs of an asynchronous run{}{}", output_folder.string(),
                    state->reason.empty() ? "" : ": ", state->reason),
        state->unanswered.empty()
            ? fix
            : fmt::format("{}; the scheduler does not answer whether they are still there ({})",
                          fix, state->unanswered));
}

void absorb_async(const fs::path& output_folder, std::uint64_t hash, JournalWriter& journal) {
  if (const auto fence = AsyncFence::load(output_folder)) {
    for (const fs::path& file : journal_files(output_folder)) {
      const std::string stem = file.stem();
      if (!stem.starts_with("async-")) continue;
      const MappedFile bytes(file);
      scan_journal(bytes.bytes(), hash, [&](const JournalRecord& record, std::uint64_t offset) {
        if (fence->accepts(stem, record.index, offset)) journal.append(record);
      });
    }
    journal.flush();
    journal.sync();
  }
  remove_async(output_folder);
}

void remove_async(const fs::path& output_folder) {
  const fs::path folder = async_folder(output_folder);
  std::error_code ignored;  // nothing there, or on its way out
  // The claims go first and at once: without them nothing the journals hold counts any more.
  const fs::path aside = folder.string() + ".old";
  fs::remove_all(aside, ignored);
  fs::rename(folder, aside, ignored);
  fs::remove_all(aside, ignored);
  for (const fs::path& file : journal_files(output_folder))
    if (file.stem().string().starts_with("async-")) fs::remove(file, ignored);
}

}  // namespace tutti::parallel
