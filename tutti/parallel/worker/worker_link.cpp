// The worker's side of the wire: one thread that owns the socket.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <zmq.hpp>

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

// A signal that interrupts us is no error: there is nothing now.
bool take(zmq::socket_t& socket, zmq::message_t& part) {
  try {
    return socket.recv(part, zmq::recv_flags::dontwait).has_value();
  } catch (const zmq::error_t&) {
    return false;
  }
}

class Link {
 public:
  Link(WorkerState& state, const WorkerOptions& options)
      : state_(state),
        options_(options),
        pid_(::getpid()),
        socket_(context_, ZMQ_DEALER),
        monitor_(context_, ZMQ_PAIR) {
    const ConnectInfo info = read_connect_file(options.run_folder, options.id, options.life);
    socket_.set(zmq::sockopt::curve_serverkey, info.server_key);
    socket_.set(zmq::sockopt::curve_publickey, info.worker.public_key);
    socket_.set(zmq::sockopt::curve_secretkey, info.worker.secret_key);
    socket_.set(zmq::sockopt::linger, 2000);
    socket_.set(zmq::sockopt::reconnect_ivl, 50);
    socket_.set(zmq::sockopt::reconnect_ivl_max, 2000);
    socket_.set(zmq::sockopt::sndtimeo, 100);
    socket_.set(zmq::sockopt::tcp_keepalive, 1);
    // A host that is gone without a word takes no bytes: then the connection ends too.
    socket_.set(zmq::sockopt::tcp_maxrt, static_cast<int>(options.death_timeout_s * 1000));
    socket_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(wire::kMaxMessageBytes));
    ::zmq_socket_monitor(
        socket_.handle(), kMonitor,
        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
    monitor_.connect(kMonitor);
    const std::string endpoint = choose_endpoint(info);
    try {
      socket_.connect(endpoint);
    } catch (const zmq::error_t& error) {
      throw CommError("cannot connect to " + endpoint + ": " + error.what());
    }
  }

  void run() {
    send(wire::encode(wire::Hello{static_cast<std::uint32_t>(options_.id),
                                  static_cast<std::uint64_t>(::getpid()), host_name()}));
    last_heard_ = SteadyClock::now();
    if (time_is_up()) leave_before_the_walltime();  // and take no item
    while (!state_.finished()) {
      zmq::pollitem_t items[] = {{socket_.handle(), 0, ZMQ_POLLIN, 0},
                                 {nullptr, state_.event_fd(), ZMQ_POLLIN, 0},
                                 {nullptr, options_.term_fd, ZMQ_POLLIN, 0}};
      ::zmq_poll(items, options_.term_fd >= 0 ? 3 : 2, tick_ms());
      if (items[1].revents != 0) send_output();
      if (items[0].revents != 0) receive();
      if (items[2].revents != 0) leave_on_signal();
      if (term_deadline_ && SteadyClock::now() > *term_deadline_) give_up_the_item();
      if (time_is_up() && reason_.empty()) leave_before_the_walltime();
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
    while (SteadyClock::now() < deadline) {
      try {
        if (socket_.send(zmq::buffer(message), zmq::send_flags::none)) return;
      } catch (const zmq::error_t& error) {
        if (error.num() != EINTR) return;
      }
    }
  }

  void send_output() {
    for (const std::string& message : state_.take_output()) send(message);
  }

  void watch_connection() {
    zmq::message_t part;
    while (take(monitor_, part)) {
      std::uint16_t event = 0;
      if (part.size() >= sizeof event) std::memcpy(&event, part.data(), sizeof event);
      while (part.more() && take(monitor_, part)) {
      }  // the address
      connected_ = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
      if (event != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) continue;
      log::error("the driver does not know this worker any more; leaving");
      return leave_now();
    }
  }

  void receive() {
    zmq::message_t part;
    while (take(socket_, part)) {
      last_heard_ = SteadyClock::now();
      if (const auto message = wire::decode(part.to_string_view()))
        handle(*message);
      else
        log::warning("dropped a message of {} bytes that is not ours", part.size());
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
      send_output();  // who recalls to end the run wants what is done
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
    send(wire::encode(wire::Heartbeat{tree_memory_bytes(pid_), unfinished, time_nearly_up_}));
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
    clear_wake_fd(options_.term_fd);
    log::warning("got SIGTERM; finishing the running item, then leaving");
    reason_ = "SIGTERM";
    if (!term_deadline_) term_deadline_ = SteadyClock::now() + grace();
    state_.stop();
  }

  SteadyClock::duration grace() const {
    return std::chrono::duration_cast<SteadyClock::duration>(
        std::chrono::duration<double>(options_.term_grace_s));
  }

  // Whoever sent the signal wants this machine; the item begins anew elsewhere, without blame.
  [[noreturn]] void give_up_the_item() {
    log::warning("the item takes longer than {} after SIGTERM; it goes to another worker",
                 format_duration(options_.term_grace_s));
    send_output();
    send(wire::encode(wire::Bye{reason_}));
    socket_.close();
    monitor_.close();
    context_.close();  // returns when the last word is out, or after the linger
    std::fflush(nullptr);
    ::_exit(0);
  }

  bool time_is_up() const {
    return options_.drain_at > 0 && Clock::system().unix_seconds() >= options_.drain_at;
  }

  // The scheduler would end us soon: leave in order, so that no item dies with the job.
  void leave_before_the_walltime() {
    log::info("the job's time is nearly up; finishing the running item, then leaving");
    reason_ = "walltime";
    time_nearly_up_ = 1;
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
  zmq::context_t context_;
  zmq::socket_t socket_;
  zmq::socket_t monitor_;
  bool connected_ = false;
  std::uint32_t heartbeat_ms_ = 500;
  SteadyClock::time_point last_heard_;
  SteadyClock::time_point last_beat_;
  SteadyClock::time_point trouble_since_;
  std::optional<SteadyClock::time_point> term_deadline_;
  bool reported_trouble_ = false;
  std::uint8_t time_nearly_up_ = 0;
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
