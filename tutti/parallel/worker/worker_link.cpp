// The worker's side of the wire: one thread that owns the socket.
#include <fmt/format.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/core/units.h"
#include "tutti/parallel/wire/network.h"
#include "tutti/parallel/wire/secrets.h"
#include "tutti/parallel/worker/item_processes.h"
#include "tutti/parallel/worker/worker_state.h"

namespace tutti::parallel {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kMonitor[] = "inproc://tutti-link-monitor";

// With several addresses: the first that takes a connection, and what became of the others.
std::string choose_endpoint(const ConnectInfo& info) {
  if (info.more_endpoints.empty()) return info.endpoint;  // ZeroMQ keeps trying by itself
  std::vector<std::string> endpoints = {info.endpoint};
  endpoints.insert(endpoints.end(), info.more_endpoints.begin(), info.more_endpoints.end());
  std::string failures;
  std::string found = first_reachable(endpoints, std::chrono::seconds(3), failures);
  if (found.empty())
    throw CommError("the driver cannot be reached: " + failures,
                    "name the network that workers share: parallel.interface");
  if (!failures.empty()) log::warning("{}; using {}", failures, found);
  return found;
}

class Link {
 public:
  Link(WorkerState& state, const WorkerOptions& options)
      : state_(state), options_(options), pid_(::getpid()), context_(::zmq_ctx_new()) {
    socket_ = ::zmq_socket(context_, ZMQ_DEALER);
    const ConnectInfo info = read_connect_file(options.run_folder);
    if (!options.life.empty() && options.life != info.life)
      throw CommError("the driver that asked for this worker is gone; another uses the folder now");
    const auto set_int = [&](int option, int value) {
      ::zmq_setsockopt(socket_, option, &value, sizeof value);
    };
    const auto set_text = [&](int option, const std::string& value) {
      ::zmq_setsockopt(socket_, option, value.data(), value.size());
    };
    set_text(ZMQ_ROUTING_ID, worker_identity(options.id, info.life));
    set_text(ZMQ_CURVE_SERVERKEY, info.server_key);
    set_text(ZMQ_CURVE_PUBLICKEY, info.worker.public_key);
    set_text(ZMQ_CURVE_SECRETKEY, info.worker.secret_key);
    set_int(ZMQ_LINGER, 2000);
    set_int(ZMQ_RECONNECT_IVL, 50);
    set_int(ZMQ_RECONNECT_IVL_MAX, 2000);
    set_int(ZMQ_SNDTIMEO, 100);
    set_int(ZMQ_TCP_KEEPALIVE, 1);
    // A host that is gone without a word takes no bytes: then the connection ends too.
    set_int(ZMQ_TCP_MAXRT, static_cast<int>(options.death_timeout_s * 1000));
    ::zmq_socket_monitor(socket_, kMonitor, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED);
    monitor_ = ::zmq_socket(context_, ZMQ_PAIR);
    ::zmq_connect(monitor_, kMonitor);
    const std::int64_t max_size = wire::kMaxMessageBytes;
    ::zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &max_size, sizeof max_size);
    const std::string endpoint = choose_endpoint(info);
    if (::zmq_connect(socket_, endpoint.c_str()) != 0)
      throw CommError("cannot connect to " + endpoint + ": " + ::zmq_strerror(::zmq_errno()));
  }
  ~Link() {
    ::zmq_close(monitor_);
    ::zmq_close(socket_);
    ::zmq_ctx_term(context_);
  }

  void run() {
    send(wire::encode(wire::Hello{static_cast<std::uint32_t>(options_.id),
                                  static_cast<std::uint64_t>(::getpid()), host_name()}));
    last_heard_ = SteadyClock::now();
    while (!state_.finished()) {
      zmq_pollitem_t items[] = {{socket_, 0, ZMQ_POLLIN, 0},
                                {nullptr, state_.event_fd(), ZMQ_POLLIN, 0},
                                {nullptr, options_.term_fd, ZMQ_POLLIN, 0}};
      ::zmq_poll(items, options_.term_fd >= 0 ? 3 : 2, tick_ms());
      if (items[1].revents != 0) send_output();
      if (items[0].revents != 0) receive();
      if (items[2].revents != 0) leave_on_signal();
      if (options_.drain_at > 0 && reason_.empty() &&
          Clock::system().unix_seconds() >= options_.drain_at)
        leave_before_the_walltime();
      const auto now = SteadyClock::now();
      watch_running_item(now);
      if (now - last_beat_ >= std::chrono::milliseconds(heartbeat_ms_)) beat(now);
      watch_connection();
      // A driver that is stopped or busy says nothing for a while, but its machine still answers.
      if (!connected_ &&
          std::chrono::duration<double>(now - last_heard_).count() > options_.death_timeout_s) {
        log::error("no word from the driver for {}; leaving",
                   format_duration(options_.death_timeout_s));
        leave_now();
      }
    }
    send_output();
    send(wire::encode(wire::Bye{reason_}));
  }

 private:
  int tick_ms() const {
    const bool watching = options_.memory_limit > 0 || state_.item_timeout() > 0;
    return watching ? std::min(25, static_cast<int>(heartbeat_ms_))
                    : static_cast<int>(heartbeat_ms_);
  }

  void send(const std::string& message) {
    // A full queue means the driver is slow or away; keep trying until it counts as gone.
    const auto deadline =
        SteadyClock::now() + std::chrono::duration<double>(options_.death_timeout_s);
    while (::zmq_send(socket_, message.data(), message.size(), 0) < 0) {
      if (::zmq_errno() != EAGAIN && ::zmq_errno() != EINTR) return;
      if (SteadyClock::now() > deadline) return;
    }
  }

  void send_output() {
    for (const std::string& message : state_.take_output()) send(message);
  }

  void watch_connection() {
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
      if (::zmq_msg_more(&part) != 0) ::zmq_msg_recv(&part, monitor_, 0);  // the address
      ::zmq_msg_close(&part);
      connected_ = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    }
  }

  void receive() {
    for (;;) {
      zmq_msg_t part;
      ::zmq_msg_init(&part);
      if (::zmq_msg_recv(&part, socket_, ZMQ_DONTWAIT) < 0) {
        ::zmq_msg_close(&part);
        return;
      }
      last_heard_ = SteadyClock::now();
      const std::string_view bytes(static_cast<const char*>(::zmq_msg_data(&part)),
                                   ::zmq_msg_size(&part));
      if (const auto message = wire::decode(bytes))
        handle(*message);
      else
        log::warning("dropped a message of {} bytes that is not ours", bytes.size());
      ::zmq_msg_close(&part);
    }
  }

  void handle(const wire::Message& message) {
    if (const auto* welcome = std::get_if<wire::Welcome>(&message)) {
      heartbeat_ms_ = std::clamp<std::uint32_t>(welcome->heartbeat_ms, 10, 60000);
    } else if (const auto* job = std::get_if<wire::Job>(&message)) {
      state_.push_job(job->job, std::string(job->spec_json));
    } else if (const auto* lease = std::get_if<wire::Lease>(&message)) {
      state_.push_lease(*lease);
    } else if (const auto* recall = std::get_if<wire::Recall>(&message)) {
      send(wire::encode(
          wire::Released{recall->lease, state_.take_back(recall->lease, recall->max_items)}));
    } else if (std::holds_alternative<wire::Stop>(message)) {
      reason_ = "stopped by the driver";
      state_.stop();
    }
  }

  void beat(SteadyClock::time_point now) {
    last_beat_ = now;
    // Results first: an item that is finished here is still unfinished for the driver until it has
    // the result, and a beat without it would make the driver hand the item out again.
    std::uint64_t unfinished = 0;
    for (const std::string& message : state_.take_output(&unfinished)) send(message);
    send(wire::encode(wire::Heartbeat{tree_memory_bytes(pid_), unfinished}));
  }

  void watch_running_item(SteadyClock::time_point now) {
    if (reported_trouble_) {
      // The driver should have ended us by now; do not sit on the machine if it cannot.
      if (now - trouble_since_ > std::chrono::seconds(10)) leave_now();
      return;
    }
    const double timeout = state_.item_timeout();
    if (options_.memory_limit == 0 && timeout <= 0) return;
    const auto running = state_.running();
    if (!running) return;
    if (timeout > 0 && std::chrono::duration<double>(now - running->since).count() > timeout)
      report_trouble(wire::TroubleKind::kTimeout, *running,
                     "took longer than item_timeout = " + format_duration(timeout));
    if (options_.memory_limit == 0) return;
    const std::uint64_t used = tree_memory_bytes(pid_, options_.memory_limit);
    if (used > options_.memory_limit)
      report_trouble(wire::TroubleKind::kMemory, *running,
                     "the worker used " + format_bytes(used) +
                         ", more than memory_limit = " + format_bytes(options_.memory_limit));
  }

  void report_trouble(wire::TroubleKind kind, const WorkerState::Running& running,
                      const std::string& text) {
    reported_trouble_ = true;
    trouble_since_ = SteadyClock::now();
    send_output();
    send(wire::encode(wire::Trouble{kind, running.lease, running.index, text}));
  }

  void leave_on_signal() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(options_.term_fd, &count, sizeof count);
    log::warning("got SIGTERM; finishing the running item, then leaving");
    reason_ = "SIGTERM";
    state_.stop();
  }

  // The scheduler would end us soon: leave in order, so that no item dies with the job.
  void leave_before_the_walltime() {
    log::info("the job's time is nearly up; finishing the running item, then leaving");
    reason_ = "walltime";
    state_.stop();
  }

  void leave_now() const {
    if (options_.own_process) {
      std::fflush(nullptr);
      ::_exit(0);  // the compute thread may be inside an item for hours
    }
    state_.stop();
  }

  WorkerState& state_;
  const WorkerOptions& options_;
  const pid_t pid_;
  void* context_ = nullptr;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
  bool connected_ = false;
  std::uint32_t heartbeat_ms_ = 500;
  SteadyClock::time_point last_heard_;
  SteadyClock::time_point last_beat_;
  SteadyClock::time_point trouble_since_;
  bool reported_trouble_ = false;
  std::string reason_;
};

}  // namespace

int run_link(WorkerState& state, const WorkerOptions& options) {
  try {
    Link(state, options).run();
    return 0;
  } catch (const Error& error) {
    log::error("worker {}: {}", options.id, error.what());
    state.stop();
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace tutti::parallel
