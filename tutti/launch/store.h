// A small key-value store over TCP: how agents, ranks and their libraries find each other.
//
//   StoreServer server({.secrets = {secret}});                      // in the agent, or rank 0
//   Store store({"node1", server.port()}, secret, 10s);
//   store.set("addr/0", "10.0.0.1:4000");
//   std::string value = store.wait("addr/1", 30s);                // CommError names the key
//   store.barrier("epoch", rank, world_size, 60s);                // CommError names the missing
//   ranks
//
// Why not libtorch's TCPStore: a timed-out call on 1.13 leaves its stream one answer behind for
// ever, and it dies with rank 0. Here requests carry ids and the server, not the client, holds the
// deadlines, so a timed-out call leaves nothing behind.
//
// A Store is thread-safe, one request at a time: a waiting call holds up the others, so a thread
// that waits for long gets a Store of its own. Errors: CommError (also for a wrong secret).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/socket.h"

namespace tutti::launch {

using Timeout = std::chrono::duration<double>;

// Serves until destroyed, on a thread of its own.
class StoreServer {
 public:
  struct Options {
    std::string host;                  // "" = every interface
    int port = 0;                      // 0 = any free one
    std::vector<std::string> secrets;  // any of them opens it. REQUIRES: not empty
  };
  explicit StoreServer(const Options& options);
  ~StoreServer();
  int port() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

class Store {
 public:
  // Tries until somebody answers or `timeout` is over; a server that refuses us ends the trying.
  Store(Address address, std::string secret, Timeout timeout);

  // With a lease the key vanishes unless it is set again in time, and at once when the connection that
  // set it ends: a sign of life.
  void set(const std::string& key, const std::string& value, Timeout lease = Timeout(0));
  std::optional<std::string> get(const std::string& key);
  // Blocks until the key exists.
  std::string wait(const std::string& key, Timeout timeout);
  std::int64_t add(const std::string& key, std::int64_t amount);  // a missing key counts as 0
  // Sets `desired` if the key holds `expected` (empty expected: or is missing); returns what it
  // holds now. The first of several failures is found this way.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);
  bool remove(const std::string& key);
  std::map<std::string, std::string> list(const std::string& prefix);
  // Returns when all `n` members (numbered from 0) have called it. A name may be used again after
  // everyone has passed.
  void barrier(const std::string& name, int member, int n, Timeout timeout);
  const Address& address() const noexcept { return address_; }

 private:
  Frame call(std::uint8_t type, const std::string& body, Timeout timeout);

  // Constant after construction.
  Address address_;
  std::string secret_;
  // Guarded by mutex_.
  std::mutex mutex_;
  Channel channel_;
  std::uint64_t next_id_ = 1;
};

}  // namespace tutti::launch
