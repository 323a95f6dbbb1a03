#include "tutti/parallel/run/driver_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
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
    : options_(std::move(options)),
      router_(context_, ZMQ_ROUTER),
      monitor_(context_, ZMQ_PAIR),
      keys_(options_.run_folder),
      doorman_(context_, keys_) {
  const KeyPair own = make_key_pair();
  router_.set(zmq::sockopt::curve_server, true);
  router_.set(zmq::sockopt::curve_secretkey, own.secret_key);
  router_.set(zmq::sockopt::zap_domain, "tutti");
  router_.set(zmq::sockopt::router_mandatory, true);
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
  ConnectInfo info{.server_key = own.public_key, .life = options_.life};
  for (const std::string& address : addresses)
    info.more_endpoints.push_back("tcp://" + address + port);
  endpoint_ = info.more_endpoints.front();
  info.endpoint = endpoint_;
  info.more_endpoints.erase(info.more_endpoints.begin());
  keys_.publish(std::move(info));
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
  const std::string route = part.to_string();
  Letter letter;
  for (int frame = 1; part.more(); ++frame) {
    if (!take(router_, part)) break;  // cannot be: the parts of a message come together
    if (frame == 1) {
      letter.bytes = part.to_string();
      const char* name = ::zmq_msg_gets(part.handle(), "User-Id");  // the doorman's word
      if (name != nullptr) letter.worker = std::atoi(name);
    } else {
      letter.bytes.clear();  // ours have one frame: drop the rest as malformed
    }
  }
  if (letter.worker >= 0) routes_[letter.worker] = route;  // it may have connected anew
  return letter;
}

bool DriverSocket::send(int worker, std::string_view message) {
  const auto route = routes_.find(worker);
  if (route == routes_.end()) return false;
  try {
    return router_.send(zmq::buffer(route->second),
                        zmq::send_flags::sndmore | zmq::send_flags::dontwait) &&
           router_.send(zmq::buffer(message), zmq::send_flags::dontwait);
  } catch (const zmq::error_t&) {  // it has gone
    return false;
  }
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

}  // namespace tutti::parallel
