// The driver's end of the wire: one authenticated ROUTER socket, and what its monitor tells of
// peers. Whoever connects must know the key of connect.json and call itself `wID.LIFE`: workers of
// an earlier driver in the same folder are strangers. Used by one thread. Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <zmq.hpp>

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
  ~DriverSocket();  // removes connect.json

  const std::string& endpoint() const noexcept { return endpoint_; }
  // Until a message, a monitor event or `fd` is there, or `limit_ms` have passed.
  void wait(int fd, int limit_ms);

  struct Letter {
    std::string identity;
    std::string bytes;
  };
  std::optional<Letter> receive();
  // False: nobody of that name is there, or its queue is full.
  bool send(const std::string& identity, std::string_view message);

  struct Events {
    int disconnected = 0;
    int refused = 0;
  };
  Events take_events();

  std::string identity_of(int worker) const;
  // The worker's number if it is one of this driver's life.
  std::optional<int> worker_of(std::string_view identity) const;

 private:
  const Options options_;
  zmq::context_t context_;
  std::unique_ptr<Doorman> doorman_;  // must go before the context
  zmq::socket_t router_;
  zmq::socket_t monitor_;
  std::string endpoint_;
};

}  // namespace tutti::parallel
