#include "tutti/parallel/run/driver_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/parallel/wire/network.h"
#include "tutti/parallel/wire/wire.h"

namespace tutti::parallel {
namespace {

constexpr char kMonitor[] = "inproc://tutti-monitor";

// A signal that interrupts us is no error: there is nothing now.
bool take(zmq::socket_t& socket, zmq::message_t& part) {
  try {
    return socket.recv(part, zmq::recv_flags::dontwait).has_value();
  } catch (const zmq::error_t&) {
    return false;
  }
}

}  // namespace

DriverSocket::DriverSocket(Options options)
    : options_(std::move(options)), router_(context_, ZMQ_ROUTER), monitor_(context_, ZMQ_PAIR) {
  const KeyPair own = make_key_pair();
  const KeyPair worker = make_key_pair();
  doorman_ = std::make_unique<Doorman>(context_.handle(), worker.public_key);
  router_.set(zmq::sockopt::curve_server, true);
  router_.set(zmq::sockopt::curve_secretkey, own.secret_key);
  router_.set(zmq::sockopt::zap_domain, "tutti");
  router_.set(zmq::sockopt::router_mandatory, true);
  router_.set(zmq::sockopt::router_handover, true);  // a worker that reconnects keeps its name
  // A peer that does not finish its handshake is dropped; many at once need longer.
  router_.set(zmq::sockopt::handshake_ivl, std::max(5000, 2 * options_.n_workers));
  router_.set(zmq::sockopt::linger, 500);
  router_.set(zmq::sockopt::backlog, 4096);
  router_.set(zmq::sockopt::tcp_keepalive, 1);
  router_.set(zmq::sockopt::tcp_keepalive_idle, 60);
  router_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(wire::kMaxMessageBytes));
  ::zmq_socket_monitor(router_.handle(), kMonitor,
                       ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                           ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
  monitor_.set(zmq::sockopt::linger, 0);
  monitor_.connect(kMonitor);
  // Several networks and no `interface`: workers try them in order.
  const std::vector<std::string> addresses = options_.local
                                                 ? std::vector<std::string>{"127.0.0.1"}
                                                 : addresses_of_interface(options_.interface);
  const std::string host = addresses.size() == 1 ? addresses[0] : "0.0.0.0";
  try {
    router_.bind(fmt::format("tcp://{}:*", host));
  } catch (const zmq::error_t& error) {
    throw CommError(fmt::format("cannot listen on {}: {}", host, error.what()));
  }
  const std::string bound = router_.get(zmq::sockopt::last_endpoint);
  const std::string port = bound.substr(bound.rfind(':'));
  ConnectInfo info{
      .endpoint = "", .server_key = own.public_key, .worker = worker, .life = options_.life};
  for (const std::string& address : addresses)
    info.more_endpoints.push_back("tcp://" + address + port);
  endpoint_ = info.more_endpoints.front();
  info.endpoint = endpoint_;
  info.more_endpoints.erase(info.more_endpoints.begin());
  write_connect_file(options_.run_folder, info);
}

DriverSocket::~DriverSocket() {
  doorman_.reset();
  std::error_code ignored;  // a read-only or vanished folder must not break the way out
  std::filesystem::remove(connect_file(options_.run_folder), ignored);
  std::filesystem::remove(life_file(options_.run_folder), ignored);
}

void DriverSocket::wait(int fd, int limit_ms) {
  zmq::pollitem_t items[] = {{router_.handle(), 0, ZMQ_POLLIN, 0},
                             {nullptr, fd, ZMQ_POLLIN, 0},
                             {monitor_.handle(), 0, ZMQ_POLLIN, 0}};
  ::zmq_poll(items, 3, limit_ms);  // not zmq::poll: a signal that interrupts it is no error
}

std::optional<DriverSocket::Letter> DriverSocket::receive() {
  zmq::message_t part;
  if (!take(router_, part)) return std::nullopt;
  Letter letter{part.to_string(), ""};
  for (int frame = 1; part.more(); ++frame) {
    if (!take(router_, part)) break;  // cannot be: the parts of a message come together
    if (frame == 1)
      letter.bytes = part.to_string();
    else
      letter.bytes.clear();  // ours have one frame: drop the rest as malformed
  }
  return letter;
}

bool DriverSocket::send(const std::string& identity, std::string_view message) {
  // Not socket_t::send: to it, a worker that has gone would be an exception.
  if (::zmq_send(router_.handle(), identity.data(), identity.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) <
      0)
    return false;
  return ::zmq_send(router_.handle(), message.data(), message.size(), ZMQ_DONTWAIT) >= 0;
}

DriverSocket::Events DriverSocket::take_events() {
  Events events;
  zmq::message_t part;
  while (take(monitor_, part)) {
    std::uint16_t event = 0;
    if (part.size() >= sizeof event) std::memcpy(&event, part.data(), sizeof event);
    while (part.more() && take(monitor_, part)) {
    }  // the address
    if (event == ZMQ_EVENT_DISCONNECTED)
      ++events.disconnected;
    else
      ++events.refused;
  }
  return events;
}

std::string DriverSocket::identity_of(int worker) const {
  return worker_identity(worker, options_.life);
}

std::optional<int> DriverSocket::worker_of(std::string_view identity) const {
  const auto dot = identity.find('.');
  if (identity.empty() || identity[0] != 'w' || dot == std::string_view::npos) return std::nullopt;
  if (identity.substr(dot + 1) != options_.life) return std::nullopt;
  int worker = -1;
  const auto [end, error] = std::from_chars(identity.data() + 1, identity.data() + dot, worker);
  if (error != std::errc() || end != identity.data() + dot || worker < 0) return std::nullopt;
  return worker;
}

}  // namespace tutti::parallel
