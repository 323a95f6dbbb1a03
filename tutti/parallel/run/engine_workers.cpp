// Life and death of workers: who is up, who fell silent, who is replaced, who is to blame.
#include <fmt/format.h>
#include <zmq.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/units.h"
#include "tutti/parallel/run/engine.h"
#include "tutti/parallel/worker/worker_state.h"

namespace tutti::parallel {
namespace {

using std::chrono::milliseconds;

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

}  // namespace

std::string Engine::log_tail(const Worker& worker) const {
  constexpr std::streamoff kTail = 2000;
  std::ifstream file(worker.log, std::ios::binary);
  if (!file) return "";
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string tail(static_cast<std::size_t>(std::min(size, kTail)), '\0');
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  return tail.empty() ? "" : fmt::format("\n  end of {}:\n{}", worker.log.string(), tail);
}

int Engine::count_live() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.phase != Phase::kDying && !entry.second.said_bye;
  }));
}

void Engine::bring_up(TimePoint now) {
  if ((!run_ && !keep_workers_) || draining_ || now < not_before_) return;
  int wanted = settings_.n_workers;
  // Never more workers than items; a queue position costs hours on a cluster.
  if (run_)
    wanted = static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(wanted),
                                                      run_->schedule.num_unfinished()));
  const int missing = wanted - count_live();
  if (missing <= 0) return;
  for (const JobStatus& job : backend_->submit(missing)) {
    for (const int id : job.worker_ids) {
      Worker worker;
      worker.id = id;
      worker.job_id = job.job_id;
      worker.sole_of_job = job.worker_ids.size() == 1;
      worker.log = job.log;
      worker.started = now;
      worker.last_heard = now;
      workers_.emplace(id, std::move(worker));
    }
  }
}

void Engine::on_hello(const std::string& identity, std::uint32_t id, std::uint64_t pid,
                      std::string_view host) {
  const auto found = workers_.find(static_cast<int>(id));
  if (found == workers_.end() || identity != fmt::format("w{}", id)) {
    if (run_) ++run_->report.bad_messages;
    return;
  }
  Worker& worker = found->second;
  if (worker.pid != 0 && (worker.pid != pid || worker.host != host)) {
    // The scheduler started the job again (requeue): what the process before held goes to others,
    // and it is nobody's fault.
    if (run_)
      run_->report.handed_again += run_->schedule.lose(worker.id, std::nullopt, false).returned;
    worker.said_bye = false;
    if (worker.phase != Phase::kDying) worker.phase = Phase::kStarting;
  }
  worker.pid = pid;
  worker.host = host;
  worker.last_heard = SteadyClock::now();
  if (worker.phase == Phase::kStarting) worker.phase = Phase::kConnected;
  // Fewer beats per worker when there are many, as the driver has only one thread to hear them.
  const double interval = options_.heartbeat_s * std::max(1.0, settings_.n_workers / 200.0);
  send(worker, wire::encode(wire::Welcome{static_cast<std::uint32_t>(interval * 1000)}));
}

void Engine::watch_strangers() {
  for (;;) {
    zmq_msg_t part;
    ::zmq_msg_init(&part);
    if (::zmq_msg_recv(&part, monitor_, ZMQ_DONTWAIT) < 0) {
      ::zmq_msg_close(&part);
      return;
    }
    std::uint16_t event = 0;
    if (::zmq_msg_size(&part) >= sizeof event)
      std::memcpy(&event, ::zmq_msg_data(&part), sizeof event);
    const bool more = ::zmq_msg_more(&part) != 0;
    ::zmq_msg_close(&part);
    if (more) {  // the address
      ::zmq_msg_init(&part);
      ::zmq_msg_recv(&part, monitor_, 0);
      ::zmq_msg_close(&part);
    }
    if (event == ZMQ_EVENT_DISCONNECTED)
      last_poll_ = {};  // somebody left: look at the processes now
    else
      ++refused_peers_;
  }
}

void Engine::poll_backend(TimePoint now) {
  const auto interval = local_ ? milliseconds(10) : milliseconds(1000);
  if (workers_.empty() || now - last_poll_ < interval) return;
  last_poll_ = now;
  int num_waiting = 0;
  std::string why;
  for (const JobStatus& job : backend_->poll()) {
    if (job.phase == JobPhase::kPending) {
      ++num_waiting;
      why = job.reason;
    }
    if (job.phase == JobPhase::kPending || job.phase == JobPhase::kRunning) continue;
    for (const int id : job.worker_ids) {
      const auto found = workers_.find(id);
      if (found == workers_.end()) continue;
      // Its last results may still be on their way through the socket.
      end_worker(found->second, job.reason, !job.preempted);
    }
  }
  if (run_ && !local_)
    run_->report.waiting =
        num_waiting == 0
            ? ""
            : fmt::format("{} job{}: {}", num_waiting, num_waiting == 1 ? " waits" : "s wait", why);
}

void Engine::end_worker(Worker& worker, std::string reason, bool blame) {
  if (worker.phase == Phase::kDying) return;
  const bool was_starting = worker.phase == Phase::kStarting;
  const bool was_building = worker.phase == Phase::kBuilding;
  worker.phase = Phase::kDying;
  worker.reason = std::move(reason);
  worker.blame = blame && !worker.said_bye;
  worker.gone_at = SteadyClock::now() + milliseconds(15);
  if (run_ && (was_starting || was_building) && !worker.said_bye) {
    start_failed(fmt::format("worker {} died while {}: {}{}", worker.id,
                             was_starting ? "starting" : "building its env", worker.reason,
                             log_tail(worker)),
                 worker);
  }
}

void Engine::start_failed(const std::string& what, const Worker& worker) {
  ++failed_starts_;
  log::warning("{}", what);
  not_before_ = SteadyClock::now() + milliseconds(50) * (1 << std::min(failed_starts_, 6));
  if (failed_starts_ < options_.env_tries || !run_) return;
  const std::string text =
      fmt::format("{} workers in a row did not come up; the last one: {}", failed_starts_, what);
  finish_run(worker.pid == 0 ? std::make_exception_ptr(SchedulerError(text))
                             : std::make_exception_ptr(TaskError(text)));
}

void Engine::on_env_failed(Worker& worker, std::uint32_t exit_code, std::string_view error) {
  if (worker.phase != Phase::kBuilding) return;
  ++failed_starts_;
  log::warning("worker {}: building the env failed: {}", worker.id, error);
  if (run_ && failed_starts_ >= options_.env_tries) {
    finish_run(as_typed(exit_code,
                        fmt::format("the env could not be built in {} tries; worker {} says: {}{}",
                                    failed_starts_, worker.id, error, log_tail(worker))));
  }
  // A fresh process tries again: the failed build may have left anything behind.
  worker.said_bye = true;
  send(worker, wire::encode(wire::Stop{}));
  not_before_ = SteadyClock::now() + milliseconds(50);
}

void Engine::on_trouble(Worker& worker, std::uint8_t kind, std::uint64_t lease, std::uint64_t index,
                        std::string_view text) {
  if (worker.phase == Phase::kDying) return;
  const std::string reason(text);
  if (worker.sole_of_job) backend_->cancel({worker.job_id});
  end_worker(worker, reason, false);
  if (!run_) return;
  if (static_cast<wire::TroubleKind>(kind) == wire::TroubleKind::kTimeout) {
    // The same item would take as long again: it has failed.
    const Loss loss = run_->schedule.lose_and_fail(worker.id, {lease, index});
    run_->report.handed_again += loss.returned;
    if (loss.quarantined) fail_item(index, reason, worker.id);
    return;
  }
  const Loss loss = run_->schedule.lose(worker.id, RunningItem{lease, index}, true);
  run_->report.handed_again += loss.returned;
  log::warning("item {}: {}; worker {} is replaced", index, reason, worker.id);
  if (loss.quarantined)
    fail_item(*loss.suspect, fmt::format("{} ({} workers on its own)", reason, loss.strikes),
              worker.id);
}

void Engine::watch_silence(TimePoint now) {
  for (auto& [id, worker] : workers_) {
    if (worker.phase == Phase::kStarting || worker.phase == Phase::kDying) continue;
    const double silent = std::chrono::duration<double>(now - worker.last_heard).count();
    if (silent < options_.silence_s) continue;
    log::warning("worker {} has been silent for {}; it is replaced", id, format_duration(silent));
    if (worker.sole_of_job) backend_->cancel({worker.job_id});
    end_worker(worker, fmt::format("silent for {}", format_duration(silent)), true);
  }
}

void Engine::bury_the_dead(TimePoint now) {
  for (auto next = workers_.begin(); next != workers_.end();) {
    const auto entry = next++;
    if (entry->second.phase != Phase::kDying || entry->second.gone_at > now) continue;
    bury(entry->second);
    workers_.erase(entry);
  }
}

void Engine::bury(Worker& worker) {
  const auto running =
      worker.host == own_host_ ? ProgressPage::read(options_.run_folder, worker.id) : std::nullopt;
  std::error_code ignored;  // only a leftover
  std::filesystem::remove(ProgressPage::path(options_.run_folder, worker.id), ignored);
  worker.report.phase = "gone";
  worker.report.id = worker.id;
  worker.report.pid = worker.pid;
  worker.report.host = worker.host;
  worker.report.busy_s = static_cast<double>(worker.busy_ns) * 1e-9;
  worker.report.up_s =
      std::chrono::duration<double>(SteadyClock::now() - std::max(worker.started, run_began_))
          .count();
  past_workers_.push_back(worker.report);
  if (!run_) return;
  if (!worker.said_bye) ++run_->report.workers_lost;
  const Loss loss = run_->schedule.lose(worker.id, running, worker.blame);
  run_->report.handed_again += loss.returned;
  if (loss.suspect && !loss.quarantined)
    log::warning("worker {} died ({}) at item {}, which gets another try", worker.id, worker.reason,
                 *loss.suspect);
  if (!loss.quarantined) return;
  fail_item(
      *loss.suspect,
      fmt::format("killed {} worker{} on its own; the last one, worker {}: {}{}", loss.strikes,
                  loss.strikes == 1 ? "" : "s", worker.id, worker.reason, log_tail(worker)),
      worker.id);
}

void Engine::ping_all(TimePoint now) {
  if (std::chrono::duration<double>(now - last_ping_).count() < options_.heartbeat_s) return;
  last_ping_ = now;
  for (const auto& [id, worker] : workers_)
    if (worker.phase != Phase::kStarting && worker.phase != Phase::kDying)
      send(worker, wire::encode(wire::Ping{}));
}

void Engine::shut_down() {
  if (run_)
    finish_run(std::make_exception_ptr(Cancelled(Cancelled::By::kUser, "the client was closed")));
  bool waiting = false;
  for (auto& [id, worker] : workers_) {
    if (worker.phase == Phase::kStarting || worker.phase == Phase::kDying) continue;
    waiting = send(worker, wire::encode(wire::Stop{})) || waiting;
  }
  // Plugins' teardown gets a moment; a worker inside an item does not hold us up longer. A process
  // of ours is seen to end; of a scheduler's job we only hear after a while, so there a worker's
  // farewell, its last act, must do.
  const auto deadline = SteadyClock::now() + milliseconds(1000);
  std::optional<TimePoint> all_said_bye;
  while (waiting && SteadyClock::now() < deadline) {
    zmq_pollitem_t item{router_, 0, ZMQ_POLLIN, 0};
    ::zmq_poll(&item, 1, 1);
    receive_all();
    for (const JobStatus& job : backend_->poll())
      if (job.phase != JobPhase::kPending && job.phase != JobPhase::kRunning)
        for (const int id : job.worker_ids) workers_.erase(id);
    waiting = false;
    bool someone_works = false;
    for (const auto& [id, worker] : workers_) {
      waiting = waiting || worker.phase != Phase::kStarting;
      someone_works = someone_works || (worker.phase != Phase::kStarting && !worker.said_bye);
    }
    if (someone_works) continue;
    if (!all_said_bye) all_said_bye = SteadyClock::now();
    if (SteadyClock::now() - *all_said_bye > milliseconds(50)) break;
  }
  backend_->cancel();
  backend_.reset();
}

}  // namespace tutti::parallel
