// Answers the ZAP requests of one ZeroMQ context: peers with a key of the ring pass and are known
// by its worker's number from then on, others get nothing. Must be made before the server socket
// binds and destroyed before the context. Internal to the room.
#pragma once

#include <thread>
#include <zmq.hpp>

#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {

class Doorman {
 public:
  // References must outlive it. Throws CommError.
  Doorman(zmq::context_t& context, const KeyRing& keys);
  ~Doorman();
  Doorman(const Doorman&) = delete;
  Doorman& operator=(const Doorman&) = delete;

 private:
  void serve();
  void answer();

  zmq::context_t& context_;
  const KeyRing& keys_;
  zmq::socket_t requests_;  // touched only by the thread once it runs
  zmq::socket_t stop_;      // the thread's end
  std::thread thread_;
};

}  // namespace tutti::parallel
