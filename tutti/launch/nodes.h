// What the agents of several nodes say to each other, through the store of node 0's agent. Internal
// to the agent; with one node it is the same conversation with oneself.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tutti/launch/agent.h"
#include "tutti/launch/store.h"

namespace tutti::launch {

// How a rank (or a whole node) ended, as told to every agent.
struct Failure {
  int rank = -1;  // -1: the node itself
  int node = 0;
  std::string host;
  int exit_code = 1;
  std::string how;   // "exit code 3", "killed by SIGKILL (signal 9)"
  std::string tail;  // its last lines

  std::string to_text() const;
  static Failure parse(const std::string& text);
};

class Nodes {
 public:
  // Node 0 serves; the others connect. `stopped` is asked while waiting. Throws CommError.
  Nodes(const AgentOptions& options, std::function<bool()> stopped);
  ~Nodes();

  // Waits until every node is ready for this round and returns MASTER_ADDR and MASTER_PORT for its
  // ranks. Names the missing nodes every 30 s. Empty when stopped.
  std::optional<Address> begin_round(int round);
  // The first failure of the round, over all nodes, becomes everybody's. Never throws.
  Failure report(int round, const Failure& failure) noexcept;
  void report_done(int round);
  // What the others have reported; looked up by a thread of its own.
  std::optional<Failure> remote_failure() const;
  bool all_done() const noexcept { return all_done_; }
  // Lets the others read the outcome before node 0's store goes.
  void leave() noexcept;

  // For the ranks' TUTTI_STORE and TUTTI_SECRET.
  std::string store_address() const { return store_->address().text(); }
  const std::string& secret() const noexcept { return secret_; }

 private:
  void serve();
  void connect();
  void watch();
  void watch_once(Store& store, int round);
  std::string key(int round, const std::string& name) const;

  // Constant after construction.
  const AgentOptions& options_;
  const std::function<bool()> stopped_;
  std::string secret_;
  std::unique_ptr<StoreServer> server_;  // node 0
  std::unique_ptr<Store> store_;         // for the agent's thread

  UniqueFd reserved_port_;  // node 0: bound, not listening, so that nobody else gets it
  std::atomic<int> round_{-1};
  std::atomic<bool> all_done_{false};
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::optional<Failure> remote_failure_;  // guarded by mutex_
  std::thread watcher_;                    // several nodes only
};

}  // namespace tutti::launch
