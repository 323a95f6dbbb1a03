// What the agents of several nodes say to each other, through the store of node 0's agent. Internal
// to the agent; with one node it is the same conversation with oneself.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

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

// One start of all ranks: by which nodes.
struct Round {
  int number = 0;
  std::vector<int> members;  // node ranks, ascending. Empty: the run is over
  int place = 0;             // of this node among them
  std::vector<int> lost;     // members of the round before that are gone
  Address master;            // MASTER_ADDR and MASTER_PORT of the ranks
};

class Nodes {
 public:
  // Node 0 serves; the others connect. `stopped` is asked while waiting. Throws CommError.
  Nodes(const AgentOptions& options, std::function<bool()> stopped);
  ~Nodes();

  // Waits until every node is ready for round `number`, or, where the run may go on with fewer, until
  // those that are not are known to be lost. Node 0 decides who belongs to it; a node that came too
  // late waits for a later one. Names the missing nodes every 30 s. `only_if_lost`: begin only because
  // a node is lost; else the run is over. Empty when stopped. Throws CommError.
  std::optional<Round> begin_round(int number, bool only_if_lost);
  // The round that this node can be part of: not 0 when the run has begun without it.
  int first_round();
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
  void watch_once(Store& store);
  int min_nodes() const { return options_.min_nodes > 0 ? options_.min_nodes : options_.num_nodes; }
  // Node 0: who is there for the round. Empty when stopped.
  std::vector<int> gather(int number);
  void publish_round(int number, const std::vector<int>& members);
  // What node 0 has published, as a Round without master. Empty when stopped.
  std::optional<Round> published(int number);
  void check_nproc(const Round& round);
  static std::string key(int round, const std::string& name);

  // Constant after construction.
  const AgentOptions& options_;
  const std::function<bool()> stopped_;
  std::string secret_;
  std::unique_ptr<StoreServer> server_;  // node 0
  std::unique_ptr<Store> store_;         // for the agent's thread

  UniqueFd reserved_port_;  // node 0: bound, not listening, so that nobody else gets it
  std::atomic<bool> all_done_{false};
  std::atomic<bool> cut_off_{false};  // node 0's store does not answer
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::optional<Failure> remote_failure_;
  Round present_;
  std::thread watcher_;  // several nodes only
};

}  // namespace tutti::launch
