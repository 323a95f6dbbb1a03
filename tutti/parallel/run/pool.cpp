#include "tutti/parallel/run/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/units.h"
#include "tutti/parallel/wire/log_tail.h"

namespace tutti::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr double kStartTimeout = 600;   // from the job's start to its workers' first word
constexpr double kPatience = 600;       // with a scheduler that takes no job while nobody works
constexpr double kSettling = 30;        // a job may have started without anybody knowing yet
constexpr milliseconds kExamine{5000};  // longer than this no disk is waited for

double seconds(steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

// The exception an env build ended with on the worker, as the same type here.
std::exception_ptr as_typed(std::uint32_t exit_code, const std::string& text) {
  switch (static_cast<ExitCode>(exit_code)) {
    case ExitCode::kConfig:
      return std::make_exception_ptr(ConfigError(text));
    case ExitCode::kData:
      return std::make_exception_ptr(DataError(text));
    case ExitCode::kIo:
      return std::make_exception_ptr(IoError(text));
    default:
      return std::make_exception_ptr(TaskError(text));
  }
}

std::string tail_of(const std::filesystem::path& log) {
  const std::string tail = log_tail(log);
  return tail.empty() ? "" : fmt::format("\n  end of {}:\n{}", log.string(), tail);
}

// By the name that the scheduler has for it and can be told to avoid: a pod, or a host with an alias,
// calls itself something else. Hosts say "node7" or "node7.cluster", schedulers the former.
std::string node_of(const PoolWorker& worker) {
  return !worker.job.node.empty() ? worker.job.node : worker.host.substr(0, worker.host.find('.'));
}

// By what was seen of its job up to now, or up to the scheduler's word that it is over.
std::optional<double> ran_s(const PoolWorker& worker) {
  if (!worker.job_runs_since) return std::nullopt;
  const SteadyTime end = worker.claim ? worker.claim->at : steady_clock::now();
  return seconds(end - *worker.job_runs_since);
}

std::string ran_for(const PoolWorker& worker) {
  const auto ran = ran_s(worker);
  return ran ? fmt::format("; the job ran for {}", format_duration(*ran)) : "";
}

}  // namespace

Pool::Pool(Options options, DriverSocket& socket, Mailbox& mailbox, PoolListener& listener,
           const BackendThread::Make& make_backend)
    : options_(std::move(options)),
      pulse_(Pulse::of(options_.settings.n_workers, options_.local, options_.client.heartbeat_s,
                       options_.client.silence_s)),
      socket_(socket),
      mailbox_(mailbox),
      listener_(listener),
      backend_(make_backend, CommandRunner::system(), mailbox,
               {.run_folder = options_.client.run_folder,
                .settings = options_.settings,
                .life = options_.life,
                .keep_record = !options_.local}) {}

void Pool::begin_run() {
  ledger_ = {};
  set_aside_.clear();
  past_workers_.clear();
  not_before_ = {};
  unanswered_since_.reset();
  unanswered_submissions_ = 0;
  run_began_ = steady_clock::now();
  for (auto& [id, worker] : workers_) {
    worker.report.items = 0;
    worker.busy_ns = 0;
    worker.report.build_s = 0;
    if (worker.phase == Phase::kReady || worker.phase == Phase::kBuilding)
      worker.phase = Phase::kConnected;
  }
}

void Pool::tick(SteadyTime now) {
  look(now);
  judge_claims(now);
  watch_silence(now);
  bury_the_dead(now);
  give_up_if_hopeless(now);
  bring_up(now);
  ping(now);
}

void Pool::forgive(steady_clock::duration gap) {
  for (auto& [id, worker] : workers_) {
    worker.last_heard += gap;
    if (worker.claim) worker.claim->at += gap;
    worker.heard_since_gap = false;
  }
}

int Pool::num_live() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.phase != Phase::kDying && !entry.second.said_bye;
  }));
}

int Pool::num_ready() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.phase == Phase::kReady && !entry.second.said_bye;
  }));
}

PoolWorker* Pool::find(int id) {
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : &found->second;
}

bool Pool::send(PoolWorker& worker, std::string_view message) {
  if (!socket_.send(worker.id, message)) return false;
  worker.last_sent = steady_clock::now();
  return true;
}

// ---- starts

void Pool::bring_up(SteadyTime now) {
  if (now < not_before_) return;
  const int missing = wanted_ - num_live() - asked_;
  if (missing <= 0) return;
  // What became of a failed start is being looked at: first that, then the next.
  for (const auto& [id, worker] : workers_)
    if (worker.phase == Phase::kDying && worker.failed_start) return;
  // Nobody works and enough starts have failed: those under way decide.
  if (num_ready() == 0 && ledger_.failures_in_a_row() >= failure_limit()) return;
  std::vector<std::string> avoid = ledger_.bad_nodes();
  for (const std::string& node : avoid)
    if (set_aside_.insert(node).second)
      log::warning("{} gets no more workers ({})", node, ledger_.story());
  asked_ += missing;
  backend_.submit(missing, std::move(avoid),
                  [this, missing](const Submitted& answer) { on_submitted(missing, answer); });
}

void Pool::on_submitted(int asked, const Submitted& answer) {
  asked_ -= asked;
  for (const JobStatus& job : answer.jobs) take_in(job);
  if (!answer.error) {
    unanswered_submissions_ = 0;
    unanswered_since_.reset();
    return;
  }
  std::string words;
  try {
    std::rethrow_exception(answer.error);
  } catch (const std::exception& error) {
    words = error.what();
  }
  const auto now = steady_clock::now();
  if (answer.unreachable) {
    if (!unanswered_since_) unanswered_since_ = now;
    const int pause = 1 << std::min(unanswered_submissions_++, 6);
    not_before_ = now + std::chrono::seconds(pause);
    log::warning("{}; trying again in {} s", words, pause);
    if (num_live() == 0 && seconds(now - *unanswered_since_) > kPatience)
      listener_.on_hopeless(answer.error);
    return;
  }
  // A limit of a scheduler lasts; a full disk of this machine may be over soon.
  not_before_ = now + std::chrono::seconds(options_.local ? 5 : 60);
  if (num_live() == 0)
    listener_.on_hopeless(answer.error);
  else
    log::warning("no more workers: {}; going on with {}", words, num_live());
}

void Pool::take_in(const JobStatus& job) {
  const auto now = steady_clock::now();
  for (const int id : job.worker_ids) {
    if (id < 0 || buried_.contains(id)) continue;
    const auto [entry, is_new] = workers_.try_emplace(id);
    PoolWorker& worker = entry->second;
    if (is_new) {
      worker.id = id;
      worker.started = now;
      worker.last_heard = now;
    }
    worker.job = job;  // a worker may say hello before its submission returns
    worker.sole_of_job = job.worker_ids.size() == 1;
  }
}

void Pool::on_hello(int id, std::uint64_t pid, std::string_view host) {
  if (buried_.contains(id)) {  // given up on, replaced, and back
    socket_.send(id, wire::encode(wire::Stop{}));
    return;
  }
  PoolWorker* worker = find(id);
  if (worker == nullptr) {
    // Its submission is under way, or timed out and was accepted after all.
    JobStatus unknown;
    unknown.worker_ids = {id};
    take_in(unknown);
    worker = find(id);
    worker->sole_of_job = false;  // not known; only used to cancel
  }
  if (worker->pid != 0 && (worker->pid != pid || worker->host != host)) {
    // The scheduler started the job again (requeue).
    listener_.on_leases_void(*worker);
    if (worker->phase != Phase::kDying) worker->phase = Phase::kStarting;
  }
  if (worker->phase == Phase::kStarting) worker->said_bye = false;
  worker->pid = pid;
  worker->host = host;
  worker->last_heard = steady_clock::now();
  worker->heard_since_gap = true;
  worker->claim.reset();
  if (worker->phase == Phase::kStarting) {
    worker->phase = Phase::kConnected;
    worker->connected = worker->last_heard;
    worker->time_nearly_up = false;
  }
  send(*worker, wire::encode(wire::Welcome{static_cast<std::uint32_t>(pulse_.beat_s * 1000)}));
}

PoolWorker* Pool::heard(int id) {
  PoolWorker* worker = find(id);
  if (worker == nullptr) {
    if (buried_.contains(id)) socket_.send(id, wire::encode(wire::Stop{}));
    return nullptr;
  }
  worker->last_heard = steady_clock::now();
  worker->heard_since_gap = true;
  return worker;
}

void Pool::on_env_ready(PoolWorker& worker, double build_s) {
  worker.phase = Phase::kReady;
  worker.last_result = steady_clock::now();
  worker.report.build_s = build_s;
  ledger_.ready(node_of(worker));
}

void Pool::on_env_failed(PoolWorker& worker, std::uint32_t exit_code, std::string_view error) {
  if (worker.phase != Phase::kBuilding) return;
  // A fresh process tries again: the failed build may have left anything behind.
  worker.said_bye = true;
  send(worker, wire::encode(wire::Stop{}));
  not_before_ = std::max(not_before_, steady_clock::now() + milliseconds(50));
  left_before_ready(worker, {.what = fmt::format("worker {} on {}: building the env failed: {}",
                                                 worker.id, worker.host, error),
                             .exit_code = exit_code});
}

void Pool::on_bye(PoolWorker& worker, std::string_view reason) {
  const bool early = worker.phase == Phase::kConnected || worker.phase == Phase::kBuilding;
  // Not told to by us: its job's time was up, and the next job will not do better.
  if (early && !worker.said_bye && wanted_ > 0)
    left_before_ready(
        worker, {.what = fmt::format("worker {} on {} left before it was ready ({}){}", worker.id,
                                     worker.host, reason, ran_for(worker)),
                 .by_scheduler = true});
  worker.said_bye = true;
}

void Pool::left_before_ready(const PoolWorker& worker, StartLedger::Failure failure) {
  failure.node = node_of(worker);
  failure.connected = true;
  failure.ran_s = ran_s(worker);
  disk_.post([this, failure, log = worker.job.log] {
    std::string tail = tail_of(log);
    mailbox_.post([this, failure, tail = std::move(tail)]() mutable {
      failure.tail = std::move(tail);
      start_failed(std::move(failure));
    });
  });
}

// What the scheduler ends may be a whole round of jobs at once (preemption): that must happen again.
int Pool::failure_limit() const {
  const int tries =
      std::max(options_.client.env_tries, std::min(20, options_.settings.n_workers / 10));
  if (ledger_.ended_by_scheduler_in_a_row() == 0) return tries;
  return std::max(tries, wanted_ + std::min(2 * wanted_, 20));
}

void Pool::start_failed(StartLedger::Failure failure) {
  log::warning("{}{}", failure.what, failure.tail);
  const bool was_set_aside = set_aside_.contains(failure.node);  // not every scheduler listens
  ledger_.failed(std::move(failure));
  const auto step = options_.local ? milliseconds(50) : milliseconds(1000);
  const int failures = was_set_aside ? ledger_.failures_in_a_row() : ledger_.unexplained_failures();
  if (failures > 0) not_before_ = steady_clock::now() + step * (1 << std::min(failures - 1, 6));
}

// Only when nobody works and nobody is on the way who might: a few bad nodes are no reason.
void Pool::give_up_if_hopeless(SteadyTime now) {
  if (wanted_ == 0 || ledger_.failures_in_a_row() < failure_limit() || asked_ > 0) return;
  for (const auto& [id, worker] : workers_) {
    if (worker.said_bye || worker.phase == Phase::kDying) continue;
    if (worker.phase != Phase::kStarting) return;
    const bool queued = worker.job.phase == JobPhase::kPending && !options_.local;
    if (!queued || seconds(now - worker.started) < kSettling) return;
  }
  const StartLedger::Failure& last = ledger_.last();
  const std::string lifetimes = ledger_.lifetimes();
  const std::string text =
      fmt::format("no worker came up, {}{}; the last one: {}{}", ledger_.story(),
                  lifetimes.empty() ? "" : fmt::format(" (their jobs ran for {})", lifetimes),
                  last.what, last.tail);
  listener_.on_hopeless(
      last.exit_code != 0 ? as_typed(last.exit_code, text)
      : last.by_scheduler || !last.connected
          ? std::make_exception_ptr(SchedulerError(text, options_.local ? "" : kStillbornAdvice))
          : std::make_exception_ptr(TaskError(text)));
}

// ---- what the scheduler says

void Pool::look(SteadyTime now) {
  // This machine is asked all the time, but not more than its processes are worth.
  const auto interval = options_.local
                            ? std::max(milliseconds(10), milliseconds(workers_.size() / 10))
                            : milliseconds(1000);
  if (backend_.busy_s() > 60 && seconds(now - last_complaint_) > 60) {
    last_complaint_ = now;
    log::warning("the scheduler has not answered for {}; workers that run go on",
                 format_duration(backend_.busy_s()));
  }
  if (workers_.empty() || now - last_look_ < interval) return;
  last_look_ = now;
  backend_.look([this](const std::vector<JobStatus>& jobs) { on_states(jobs); });
}

void Pool::on_states(const std::vector<JobStatus>& jobs) {
  const auto now = steady_clock::now();
  why_jobs_wait_.clear();
  for (const JobStatus& job : jobs) {
    if (job.phase == JobPhase::kPending) ++why_jobs_wait_[job.reason];
    const bool over = job.phase != JobPhase::kPending && job.phase != JobPhase::kRunning;
    if (!over) take_in(job);
    for (const int id : job.worker_ids) {
      PoolWorker* worker = find(id);
      if (worker == nullptr) continue;
      if (job.phase == JobPhase::kRunning && !worker->job_runs_since) worker->job_runs_since = now;
      if (job.phase == JobPhase::kPending) worker->job_runs_since.reset();
      if (job.phase == JobPhase::kPending && worker->pid != 0 &&
          seconds(now - worker->last_heard) > 2 * pulse_.beat_s && worker->phase != Phase::kDying) {
        // Put back into the queue: it will come again as another process.
        listener_.on_leases_void(*worker);
        worker->pid = 0;
        worker->phase = Phase::kStarting;
      }
      if (!over) continue;
      if (options_.local)
        end(*worker, job.reason, !job.preempted);  // the kernel's word
      else if (!worker->claim)
        worker->claim = PoolWorker::Claim{job, now};
    }
  }
}

// A scheduler's "over" counts when the worker says nothing either.
void Pool::judge_claims(SteadyTime now) {
  for (auto& [id, worker] : workers_) {
    if (!worker.claim || worker.phase == Phase::kDying) continue;
    const PoolWorker::Claim& claim = *worker.claim;
    if (worker.talks() && seconds(worker.last_heard - claim.at) > pulse_.beat_s) {
      if (!std::exchange(worker.outlived_a_claim, true))
        log::warning("the scheduler calls job {} over ({}), but worker {} talks; it stays",
                     claim.job.job_id, claim.job.reason, id);
      JobStatus back = claim.job;
      back.phase = JobPhase::kRunning;
      worker.claim.reset();
      backend_.adopt({back});
    } else if (!worker.talks() ||
               // Four: on a machine with too much to do two beats may come late.
               seconds(now - std::max(claim.at, worker.last_heard)) > 4 * pulse_.beat_s) {
      const bool blame = !claim.job.preempted && claim.job.phase != JobPhase::kVanished;
      worker.job = claim.job;
      end(worker, claim.job.reason, blame);
    }
  }
}

void Pool::watch_silence(SteadyTime now) {
  for (auto& [id, worker] : workers_) {
    if (worker.phase == Phase::kDying) continue;
    if (worker.phase == Phase::kStarting) {
      if (options_.local || !worker.job_runs_since ||
          seconds(now - *worker.job_runs_since) < kStartTimeout)
        continue;
      cancel_job(worker);
      end(worker,
          fmt::format("its job has run for {} without a word from the worker",
                      format_duration(kStartTimeout)),
          false);
      continue;
    }
    const double silent = seconds(now - worker.last_heard);
    if (silent < pulse_.silence_s) continue;
    log::warning("worker {} has been silent for {}; it is replaced", id, format_duration(silent));
    cancel_job(worker);
    end(worker, fmt::format("silent for {}", format_duration(silent)), true);
  }
}

std::string Pool::waiting() const {
  if (options_.local) return "";
  std::string text;
  if (backend_.busy_s() > 10)
    text = fmt::format("the scheduler has not answered for {}", format_duration(backend_.busy_s()));
  for (const auto& [why, count] : why_jobs_wait_)
    text += fmt::format("{}{} job{}: {}", text.empty() ? "" : "; ", count,
                        count == 1 ? " waits" : "s wait", why);
  return text;
}

void Pool::cancel_job(const PoolWorker& worker) {
  if (worker.sole_of_job && !worker.job.job_id.empty()) backend_.cancel({worker.job.job_id});
}

void Pool::cancel_all() { backend_.cancel({}); }

// ---- ends

void Pool::end(PoolWorker& worker, std::string reason, bool blame) {
  if (worker.phase == Phase::kDying) return;
  worker.failed_start = !worker.said_bye && wanted_ > 0 &&
                        (worker.phase == Phase::kStarting || worker.phase == Phase::kBuilding) &&
                        !(worker.claim && worker.claim->job.host_away);
  if (worker.failed_start && worker.phase == Phase::kStarting && worker.claim)
    reason = fmt::format("worker {} never began: its job {} is over ({}){}", worker.id,
                         worker.job.job_id, reason.empty() ? "it ended without an error" : reason,
                         ran_for(worker));
  else if (worker.failed_start)
    reason = fmt::format("worker {}{} died while {}: {}{}", worker.id,
                         worker.host.empty() ? "" : " on " + worker.host,
                         worker.phase == Phase::kStarting ? "starting" : "building its env", reason,
                         ran_for(worker));
  worker.overran = !worker.said_bye && worker.overrun_by_one_item(worker.last_heard);
  worker.phase = Phase::kDying;
  worker.reason = std::move(reason);
  worker.blame = (blame || worker.overran) && !worker.said_bye && worker.heard_since_gap;
  worker.bury_at = steady_clock::now() + milliseconds(15);  // its last results may be on their way
  examine(worker);
}

// What it was doing and what it said last, from the disk.
void Pool::examine(const PoolWorker& worker) {
  const bool here = worker.host == options_.own_host;
  disk_.post(
      [this, id = worker.id, log = worker.job.log, here, folder = options_.client.run_folder] {
        std::string tail = tail_of(log);
        const auto running = here ? ProgressPage::read(folder, id) : std::nullopt;
        std::error_code ignored;  // only a leftover
        std::filesystem::remove(ProgressPage::path(folder, id), ignored);
        mailbox_.post([this, id, tail = std::move(tail), running]() mutable {
          PoolWorker* dying = find(id);
          if (dying == nullptr) return;
          dying->log_tail = std::move(tail);
          dying->running = running;
          dying->examined = true;
        });
      });
}

void Pool::bury_the_dead(SteadyTime now) {
  for (auto next = workers_.begin(); next != workers_.end();) {
    const auto entry = next++;
    PoolWorker& worker = entry->second;
    if (worker.phase != Phase::kDying || worker.bury_at > now) continue;
    if (!worker.examined && worker.bury_at + kExamine > now) continue;
    bury(worker);
    workers_.erase(entry);
  }
}

void Pool::bury(PoolWorker& worker) {
  buried_.insert(worker.id);
  disk_.post([this, id = worker.id] { socket_.keys().revoke(id); });  // it has a file
  worker.report.phase = "gone";
  worker.report.id = worker.id;
  worker.report.pid = worker.pid;
  worker.report.host = worker.host;
  worker.report.busy_s = static_cast<double>(worker.busy_ns) * 1e-9;
  worker.report.up_s = seconds(steady_clock::now() - std::max(worker.started, run_began_));
  past_workers_.push_back(worker.report);
  if (worker.failed_start) {
    const bool silent = worker.log_tail.empty() && !worker.job.log.empty();
    start_failed({.node = node_of(worker),
                  .what = worker.reason,
                  .tail = silent ? fmt::format("\n  {} says nothing", worker.job.log.string())
                                 : worker.log_tail,
                  .connected = worker.pid != 0,
                  .by_scheduler = worker.claim && (worker.claim->job.preempted ||
                                                   worker.claim->job.phase == JobPhase::kVanished),
                  .ran_s = ran_s(worker)});
  }
  listener_.on_lost(worker, worker.blame);
}

void Pool::ping(SteadyTime now) {
  if (seconds(now - last_ping_) < pulse_.beat_s / 2) return;
  last_ping_ = now;
  for (auto& [id, worker] : workers_)
    if (worker.phase != Phase::kStarting && worker.phase != Phase::kDying &&
        seconds(now - worker.last_sent) >= pulse_.beat_s / 2)
      send(worker, wire::encode(wire::Ping{}));
}

std::vector<WorkerReport> Pool::reports() {
  const auto now = steady_clock::now();
  std::vector<WorkerReport> all = past_workers_;
  for (auto& [id, worker] : workers_) {
    WorkerReport& own = worker.report;
    own.id = id;
    own.host = worker.host;
    own.pid = worker.pid;
    own.phase = worker.phase == Phase::kStarting ? "starting"
                : worker.phase == Phase::kReady  ? "ready"
                : worker.phase == Phase::kDying  ? "gone"
                                                 : "building";
    own.busy_s = static_cast<double>(worker.busy_ns) * 1e-9;
    own.up_s = seconds(now - std::max(worker.started, run_began_));
    all.push_back(own);
  }
  return all;
}

void Pool::close(const std::function<void()>& receive_messages) {
  wanted_ = 0;
  bool waiting = false;
  for (auto& [id, worker] : workers_) {
    if (worker.phase == Phase::kStarting || worker.phase == Phase::kDying) continue;
    waiting = send(worker, wire::encode(wire::Stop{})) || waiting;
  }
  // Plugins' teardown gets a moment; a worker inside an item does not hold us up longer. A process
  // of ours is seen to end; of a scheduler's job we only hear after a while, so there a worker's
  // farewell, its last act, must do.
  const auto deadline = steady_clock::now() + milliseconds(1000);
  std::optional<SteadyTime> all_said_bye;
  while (waiting && steady_clock::now() < deadline) {
    socket_.wait(mailbox_.fd(), 1);
    receive_messages();
    mailbox_.open();
    backend_.look([this](const std::vector<JobStatus>& jobs) {
      for (const JobStatus& job : jobs)
        if (job.phase != JobPhase::kPending && job.phase != JobPhase::kRunning)
          for (const int id : job.worker_ids) workers_.erase(id);
    });
    waiting = false;
    bool someone_works = false;
    for (const auto& [id, worker] : workers_) {
      const bool counts = worker.phase != Phase::kStarting && worker.phase != Phase::kDying;
      waiting = waiting || counts;
      someone_works = someone_works || (counts && !worker.said_bye);
    }
    if (someone_works) continue;
    if (!all_said_bye) all_said_bye = steady_clock::now();
    if (steady_clock::now() - *all_said_bye > milliseconds(50)) break;
  }
  backend_.close();
}

}  // namespace tutti::parallel
