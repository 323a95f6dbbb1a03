// The driver's end of the wire: one authenticated ROUTER socket, and what its monitor tells of
// peers. Who a peer is, its key says (wire/secrets.h), so that no worker can pose as another, and
// workers of an earlier driver in the same folder are strangers. Used by one thread, but for
// keys(). Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "tutti/parallel/run/doorman.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {

class DriverSocket {
 public:
  struct Options {
    std::filesystem::path run_folder;
    std::string life;
    bool local = true;      // listen on loopback only
    std::string interface;  // network to listen on; empty: all
    int n_workers = 1;
  };
  // Listens, and writes connect.json. Throws CommError, IoError.
  explicit DriverSocket(Options options);

  KeyRing& keys() noexcept { return keys_; }  // any thread
  const std::string& endpoint() const noexcept { return endpoint_; }
  // Until a message, a monitor event or `fd` is there, or `limit_ms` have passed.
  void wait(int fd, int limit_ms);

  struct Letter {
    int worker = -1;
    std::string bytes;
  };
  std::optional<Letter> receive();
  // False: it is not there, or its queue is full.
  bool send(int worker, std::string_view message);

  struct Events {
    int disconnected = 0;
    int refused = 0;
  };
  Events take_events();

 private:
  const Options options_;
  zmq::context_t context_;
  zmq::socket_t router_;
  zmq::socket_t monitor_;
  KeyRing keys_;
  Doorman doorman_;
  std::map<int, std::string> routes_;  // ZeroMQ's name for the worker's newest connection
  std::string endpoint_;
};

}  // namespace tutti::parallel
