// The loop itself: commands, messages, leases. Life and death of workers is in engine_workers.cpp.
#include "tutti/parallel/run/engine.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/parallel/wire/network.h"

namespace tutti::parallel {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLeasesInFlight = 2;  // one running, one queued: no gap between them

std::string job_key(const JobSpec& job) {
  return job.runner + "/" + job.function + "/" + job.env_fingerprint();
}

}  // namespace

Engine::Engine(ParallelSettings settings, ClientOptions options)
    : settings_(std::move(settings)),
      options_(std::move(options)),
      local_(settings_.env == "local" || settings_.env == "local_gpu"),
      own_host_(host_name()),
      event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_) throw_errno("cannot make an eventfd", errno);
  if (options_.run_folder.empty()) {
    // Workers of other hosts see the folder we are in, hardly ever our temporary one.
    if (local_)
      own_folder_.emplace("tutti-run");
    else
      own_folder_.emplace(".tutti-run", std::filesystem::current_path());
    options_.run_folder = own_folder_->path();
  }
  options_.run_folder = std::filesystem::absolute(options_.run_folder);
  if (options_.worker_command.empty()) options_.worker_command = {own_program().string()};
  options_.worker_command.insert(options_.worker_command.end(),
                                 {"worker", "--run", options_.run_folder.string()});
  if (options_.silence_s <= 0) options_.silence_s = local_ ? 3 : 20;
  make_own_folder(options_.run_folder);
  make_private_folder(options_.run_folder / ".tutti");
  open_socket();
  backend_ = make_backend(settings_,
                          {.command = options_.worker_command, .run_folder = options_.run_folder},
                          CommandRunner::system());
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(event_.get(), &one, sizeof one);
  thread_.join();
  doorman_.reset();
  ::zmq_close(monitor_);
  ::zmq_close(router_);
  ::zmq_ctx_term(context_);
  std::error_code ignored;  // a read-only or vanished folder must not break the way out
  std::filesystem::remove(connect_file(options_.run_folder), ignored);
}

void Engine::open_socket() {
  const KeyPair own = make_key_pair();
  const KeyPair worker = make_key_pair();
  context_ = ::zmq_ctx_new();
  doorman_ = std::make_unique<Doorman>(context_, worker.public_key);
  router_ = ::zmq_socket(context_, ZMQ_ROUTER);
  const auto set_int = [&](int option, int value) {
    ::zmq_setsockopt(router_, option, &value, sizeof value);
  };
  set_int(ZMQ_CURVE_SERVER, 1);
  ::zmq_setsockopt(router_, ZMQ_CURVE_SECRETKEY, own.secret_key.data(), own.secret_key.size());
  ::zmq_setsockopt(router_, ZMQ_ZAP_DOMAIN, "tutti", 5);
  set_int(ZMQ_ROUTER_MANDATORY, 1);
  set_int(ZMQ_ROUTER_HANDOVER, 1);   // a worker that reconnects keeps its name
  set_int(ZMQ_HANDSHAKE_IVL, 5000);  // a peer that does not finish its handshake is dropped
  set_int(ZMQ_LINGER, 500);
  set_int(ZMQ_BACKLOG, 1024);
  set_int(ZMQ_TCP_KEEPALIVE, 1);
  const std::int64_t max_size = wire::kMaxMessageBytes;
  ::zmq_setsockopt(router_, ZMQ_MAXMSGSIZE, &max_size, sizeof max_size);
  const std::string monitor_name = "inproc://tutti-monitor";
  ::zmq_socket_monitor(router_, monitor_name.c_str(),
                       ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                           ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
  monitor_ = ::zmq_socket(context_, ZMQ_PAIR);
  ::zmq_connect(monitor_, monitor_name.c_str());
  // Several networks and no `interface`: workers try them in order.
  const std::vector<std::string> addresses =
      local_ ? std::vector<std::string>{"127.0.0.1"} : addresses_of_interface(settings_.interface);
  const std::string host = addresses.size() == 1 ? addresses[0] : "0.0.0.0";
  if (::zmq_bind(router_, fmt::format("tcp://{}:*", host).c_str()) != 0)
    throw CommError(fmt::format("cannot listen on {}: {}", host, ::zmq_strerror(::zmq_errno())));
  std::array<char, 256> bound{};
  std::size_t size = bound.size();
  ::zmq_getsockopt(router_, ZMQ_LAST_ENDPOINT, bound.data(), &size);
  const std::string port = std::string(bound.data()).substr(std::string(bound.data()).rfind(':'));
  ConnectInfo info{.endpoint = "", .server_key = own.public_key, .worker = worker};
  for (const std::string& address : addresses)
    info.more_endpoints.push_back("tcp://" + address + port);
  endpoint_ = info.more_endpoints.front();
  info.endpoint = endpoint_;
  info.more_endpoints.erase(info.more_endpoints.begin());
  write_connect_file(options_.run_folder, info);
}

void Engine::begin(std::shared_ptr<RunState> run) {
  const std::lock_guard lock(mutex_);
  next_run_ = std::move(run);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(event_.get(), &one, sizeof one);
}

void Engine::abandon() {
  const std::lock_guard lock(mutex_);
  abandon_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(event_.get(), &one, sizeof one);
}

void Engine::start_workers() {
  const std::lock_guard lock(mutex_);
  want_workers_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(event_.get(), &one, sizeof one);
}

double Engine::item_seconds(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = item_seconds_.find(key);
  return found == item_seconds_.end() ? 0 : found->second;
}

void Engine::loop() {
  last_pass_ = SteadyClock::now();
  for (;;) {
    zmq_pollitem_t items[] = {{router_, 0, ZMQ_POLLIN, 0},
                              {nullptr, event_.get(), ZMQ_POLLIN, 0},
                              {monitor_, 0, ZMQ_POLLIN, 0}};
    ::zmq_poll(items, 3, run_ ? 10 : 100);
    const auto now = SteadyClock::now();
    // If we ourselves were stopped or starved, the workers' silence means nothing.
    if (const auto gap = now - last_pass_; gap > std::chrono::seconds(1))
      for (auto& [id, worker] : workers_) worker.last_heard += gap;
    last_pass_ = now;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) break;
    }
    try {
      take_commands();
      receive_all();
      watch_strangers();
      poll_backend(now);
      watch_silence(now);
      bury_the_dead(now);
      drain_if_asked();
      bring_up(now);
      hand_out(now);
      ping_all(now);
      publish(now);
    } catch (const Error&) {  // a submission was refused, the run folder is gone: the run's error
      if (run_)
        finish_run(std::current_exception());
      else
        report_and_exit_code();
    }
  }
  shut_down();
}

void Engine::take_commands() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto n = ::read(event_.get(), &count, sizeof count);
  std::shared_ptr<RunState> next;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(abandon_, false)) run_.reset();
    if (std::exchange(want_workers_, false)) keep_workers_ = true;
    next = std::exchange(next_run_, nullptr);
  }
  if (!next) return;
  run_ = std::move(next);
  ++job_serial_;
  run_->schedule.number_leases_from((static_cast<std::uint64_t>(job_serial_) << 32) + 1);
  draining_ = false;
  failed_starts_ = 0;
  past_workers_.clear();
  run_began_ = SteadyClock::now();
  not_before_ = {};
  run_->report.total = run_->total;
  for (auto& [id, worker] : workers_) {
    worker.report.items = 0;
    worker.busy_ns = 0;
    worker.report.build_s = 0;
    if (worker.phase == Phase::kReady || worker.phase == Phase::kBuilding)
      worker.phase = Phase::kConnected;
  }
  if (run_->schedule.done()) finish_run(nullptr);
}

void Engine::receive_all() {
  // Bounded, so that a flood of results cannot keep the loop from handing out leases.
  for (int i = 0; i < 256; ++i) {
    zmq_msg_t part;
    std::string identity;
    std::string bytes;
    for (int frame = 0;; ++frame) {
      ::zmq_msg_init(&part);
      if (::zmq_msg_recv(&part, router_, ZMQ_DONTWAIT) < 0) {
        ::zmq_msg_close(&part);
        return;
      }
      std::string& target = frame == 0 ? identity : bytes;
      if (frame < 2)
        target.assign(static_cast<const char*>(::zmq_msg_data(&part)), ::zmq_msg_size(&part));
      const bool more = ::zmq_msg_more(&part) != 0;
      ::zmq_msg_close(&part);
      if (frame >= 2) bytes.clear();  // ours have one frame: drop the rest as malformed
      if (!more) break;
    }
    handle(identity, std::move(bytes));
  }
}

void Engine::handle(const std::string& identity, std::string bytes) {
  const auto message = wire::decode(bytes);
  if (!message) {
    if (run_) ++run_->report.bad_messages;
    log::warning("dropped a malformed message of {} bytes", bytes.size());
    return;
  }
  if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
    on_hello(identity, hello->worker, hello->pid, hello->host);
    return;
  }
  const auto found = identity.size() > 1 && identity[0] == 'w'
                         ? workers_.find(std::atoi(identity.c_str() + 1))
                         : workers_.end();
  if (found == workers_.end()) {
    // A worker that was given up on and came back; the fence drops what it brings.
    if (run_) ++run_->report.stale_results;
    return;
  }
  Worker& worker = found->second;
  worker.last_heard = SteadyClock::now();
  if (std::holds_alternative<wire::Results>(*message)) {
    on_results(worker, std::move(bytes));
  } else if (const auto* beat = std::get_if<wire::Heartbeat>(&*message)) {
    worker.report.rss_bytes = beat->rss_bytes;
    // Leases or results lost with a broken connection: the worker is idle, we think it is busy.
    if (run_ && worker.phase == Phase::kReady && beat->queued_items == 0 &&
        run_->schedule.num_leases(worker.id) > 0 &&
        worker.last_heard - worker.last_lease > std::chrono::seconds(2))
      run_->report.handed_again += run_->schedule.lose(worker.id, std::nullopt, false).returned;
  } else if (const auto* ready = std::get_if<wire::EnvReady>(&*message)) {
    if (ready->job != job_serial_ || worker.phase != Phase::kBuilding) return;
    worker.phase = Phase::kReady;
    worker.report.build_s = static_cast<double>(ready->build_us) * 1e-6;
    failed_starts_ = 0;
  } else if (const auto* failed = std::get_if<wire::EnvFailed>(&*message)) {
    if (failed->job == job_serial_) on_env_failed(worker, failed->exit_code, failed->error);
  } else if (const auto* released = std::get_if<wire::Released>(&*message)) {
    if (run_ && !run_->schedule.release(released->lease, released->ranges))
      ++run_->report.bad_messages;
  } else if (const auto* trouble = std::get_if<wire::Trouble>(&*message)) {
    on_trouble(worker, static_cast<std::uint8_t>(trouble->kind), trouble->lease, trouble->index,
               trouble->text);
  } else if (std::holds_alternative<wire::Bye>(*message)) {
    worker.said_bye = true;
    if (run_)
      run_->report.handed_again += run_->schedule.lose(worker.id, std::nullopt, false).returned;
  }
}

void Engine::on_results(Worker& worker, std::string bytes) {
  OutcomeBatch batch;
  batch.bytes = std::make_unique<const std::string>(std::move(bytes));
  const auto message = wire::decode(*batch.bytes);  // again, so that views point into the batch
  const auto& results = std::get<wire::Results>(*message);
  if (!run_) return;
  batch.outcomes.reserve(results.records.size());
  bool failed = false;
  std::string first_error;
  std::uint64_t first_failed = 0;
  for (const wire::ResultRecord& record : results.records) {
    const double seconds = static_cast<double>(record.run_ns) * 1e-9;
    switch (run_->schedule.report(results.lease, record.index, seconds, record.payload.size())) {
      case Verdict::kCounted:
        batch.outcomes.push_back({record.index, record.status, seconds, worker.id, record.payload});
        ++worker.report.items;
        worker.busy_ns += record.run_ns;
        if (record.status != wire::ItemStatus::kFailed) break;
        ++run_->report.failed;
        if (!failed) {
          first_failed = record.index;
          first_error = record.payload;
        }
        failed = true;
        break;
      case Verdict::kDuplicate:
      case Verdict::kStale:
        ++run_->report.stale_results;
        break;
      case Verdict::kBroken:
        ++run_->report.bad_messages;
        break;
    }
  }
  if (batch.outcomes.empty()) return;
  if (run_->report.done == 0)
    run_->report.first_result_s =
        std::chrono::duration<double>(SteadyClock::now() - run_began_).count();
  run_->report.done += batch.outcomes.size();
  run_->push(std::move(batch));
  if (failed && run_->on_error == "stop") {
    finish_run(std::make_exception_ptr(
        TaskError(fmt::format("item {} failed: {}", first_failed, first_error),
                  "use on_error: skip to go on without it")));
    return;
  }
  if (run_->schedule.done()) finish_run(nullptr);
}

void Engine::fail_item(std::uint64_t index, const std::string& text, int worker) {
  OutcomeBatch batch;
  batch.bytes = std::make_unique<const std::string>(text);
  batch.outcomes.push_back({index, wire::ItemStatus::kFailed, 0, worker, *batch.bytes});
  ++run_->report.failed;
  ++run_->report.done;
  run_->push(std::move(batch));
  if (run_->on_error == "stop")
    finish_run(std::make_exception_ptr(TaskError(fmt::format("item {} failed: {}", index, text),
                                                 "use on_error: skip to go on without it")));
  else if (run_->schedule.done())
    finish_run(nullptr);
}

void Engine::hand_out(TimePoint now) {
  if (!run_ || draining_ || run_->full()) return;
  const int live = std::max(1, count_live());
  for (auto& [id, worker] : workers_) {
    if (worker.said_bye) continue;
    if (worker.phase == Phase::kConnected) {
      if (send(worker, wire::encode(wire::Job{job_serial_, run_->spec_json}))) {
        worker.phase = Phase::kBuilding;
        worker.job = job_serial_;
      }
      continue;
    }
    if (worker.phase != Phase::kReady) continue;
    while (run_->schedule.num_leases(id) < kLeasesInFlight) {
      const auto order = run_->schedule.next(id, live);
      if (!order) break;
      worker.last_lease = now;
      if (!send(worker, wire::encode(wire::Lease{job_serial_, order->id, order->ranges}))) {
        // Its process has ended or its connection is broken; which of them, we hear in a moment.
        run_->schedule.unsent(order->id);
        break;
      }
    }
    // Nothing left to give, but others may sit on items they have not begun.
    if (run_->schedule.num_leases(id) == 0 && now - last_recall_ > milliseconds(2)) {
      if (const auto recall = run_->schedule.recall(id)) {
        last_recall_ = now;
        if (const auto holder = workers_.find(recall->worker); holder != workers_.end())
          send(holder->second, wire::encode(wire::Recall{recall->lease, recall->max_items}));
      }
    }
  }
}

void Engine::drain_if_asked() {
  if (!run_) return;
  const StopRequest asked = run_->stop.load();
  if (asked == StopRequest::kNone) return;
  const auto by = run_->stop_by_user.load() ? Cancelled::By::kUser : Cancelled::By::kSignal;
  if (asked == StopRequest::kNow) {
    backend_->cancel();
    finish_run(std::make_exception_ptr(Cancelled(by, "stopped at once")));
    return;
  }
  if (!draining_) {
    draining_ = true;
    for (const RecallOrder& recall : run_->schedule.recall_all())
      if (const auto holder = workers_.find(recall.worker); holder != workers_.end())
        send(holder->second, wire::encode(wire::Recall{recall.lease, recall.max_items}));
  }
  if (run_->schedule.nothing_held())
    finish_run(std::make_exception_ptr(Cancelled(by, "stopped; running items were finished")));
}

void Engine::finish_run(std::exception_ptr error) {
  publish(last_publish_ + std::chrono::hours(1));  // the last one is always published
  if (run_->schedule.item_seconds() > 0) {
    const std::lock_guard lock(mutex_);
    item_seconds_[job_key(run_->job)] = run_->schedule.item_seconds();
  }
  run_->finish(std::move(error));
  run_.reset();
}

void Engine::publish(TimePoint now) {
  if (!run_ || now - last_publish_ < milliseconds(100)) return;
  last_publish_ = SteadyClock::now();
  RunReport& report = run_->report;
  report.seconds = std::chrono::duration<double>(last_publish_ - run_began_).count();
  report.refused_peers = refused_peers_;
  report.workers = past_workers_;
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
    own.up_s =
        std::chrono::duration<double>(last_publish_ - std::max(worker.started, run_began_)).count();
    report.workers.push_back(own);
  }
  double busy = 0;
  double up = 0;
  for (const WorkerReport& worker : report.workers) {
    busy += worker.busy_s;
    up += worker.up_s;
  }
  report.utilisation = up > 0 ? std::min(1.0, busy / up) : 0;
  run_->publish(report);
}

bool Engine::send(const Worker& worker, const std::string& message) {
  const std::string identity = fmt::format("w{}", worker.id);
  if (::zmq_send(router_, identity.data(), identity.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
    return false;
  return ::zmq_send(router_, message.data(), message.size(), ZMQ_DONTWAIT) >= 0;
}

}  // namespace tutti::parallel
