#include "tutti/parallel/run/doorman.h"

#include <array>
#include <string>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::parallel {
namespace {

constexpr char kStop[] = "inproc://tutti-doorman-stop";

}  // namespace

Doorman::Doorman(zmq::context_t& context, const KeyRing& keys)
    : context_(context), keys_(keys), requests_(context, ZMQ_REP), stop_(context, ZMQ_PAIR) {
  try {
    requests_.bind("inproc://zeromq.zap.01");
    stop_.bind(kStop);
  } catch (const zmq::error_t& error) {
    throw CommError(std::string("cannot start the authentication handler: ") + error.what());
  }
  thread_ = std::thread([this] { serve(); });
}

Doorman::~Doorman() {
  zmq::socket_t signal(context_, ZMQ_PAIR);
  signal.connect(kStop);
  signal.send(zmq::message_t(), zmq::send_flags::none);
  thread_.join();
}

void Doorman::serve() {
  for (;;) {
    zmq::pollitem_t items[] = {{requests_.handle(), 0, ZMQ_POLLIN, 0},
                               {stop_.handle(), 0, ZMQ_POLLIN, 0}};
    ::zmq_poll(items, 2, -1);  // not zmq::poll: a signal that interrupts it is no error
    if (items[1].revents != 0) return;
    if (items[0].revents == 0) continue;
    try {
      answer();
    } catch (const zmq::error_t&) {  // the context is on its way out; the next look ends us
    }
  }
}

void Doorman::answer() {
  // version, request id, domain, address, identity, mechanism, credentials...
  std::vector<zmq::message_t> frames;
  do {
    frames.emplace_back();
    if (!requests_.recv(frames.back())) return;
  } while (frames.back().more());
  std::optional<int> worker;
  if (frames.size() == 7 && frames[5].to_string_view() == "CURVE")
    worker = keys_.owner(frames[6].to_string_view());
  const std::array<std::string, 6> reply = {"1.0",
                                            frames.size() > 1 ? frames[1].to_string() : "",
                                            worker ? "200" : "400",
                                            worker ? "OK" : "unknown key",
                                            worker ? std::to_string(*worker) : "",  // its name here
                                            ""};
  for (std::size_t i = 0; i < reply.size(); ++i)
    requests_.send(zmq::buffer(reply[i]),
                   i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
}

}  // namespace tutti::parallel
