// One agent per node: starts the node's ranks, watches them, ends them all when one fails, and
// restarts them if asked. What torchrun does, for any program.
//
//   AgentOptions options;
//   options.command = {"./train", "--config", "x.yaml"};
//   options.nproc_per_node = 4;
//   int exit_code = run_agent(options);
//
// Every rank is a process group of its own and dies with the agent, even by kill -9. When a rank
// fails, the others get SIGTERM, a short grace, SIGKILL; its own last lines are printed last and
// alone, and its exit code becomes the agent's. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are
// passed on, but for those that were ignored when we were started (nohup, jobs in the background of a script); after SIGINT or SIGTERM nothing is restarted, and a second SIGINT kills at once. A
// rank that exits with 85 or 130 has stopped on request: no restart either.
//
// Several nodes: node 0's agent serves a Store at master_addr:master_port, or publishes a free port
// in the run folder; agents keep leases there, so a node that vanishes is a named failure
// everywhere. With min_nodes the others then go on without it.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/rank.h"
#include "tutti/launch/store.h"

namespace tutti::launch {

struct AgentOptions {
  std::vector<std::string> command;
  int nproc_per_node = 1;
  int num_nodes = 1;
  int min_nodes = 0;  // when nodes are lost, go on with as few as these; 0: all of them or none
  int node_rank = 0;
  std::string master_addr;  // several nodes: of node 0
  int master_port = 0;      // several nodes: of node 0's store
  std::filesystem::path
      run_folder;         // several nodes, no master_addr: where the address is published
  std::string interface;  // network interface to publish; empty: all
  std::string secret;     // several nodes: TUTTI_SECRET
  std::string run_id = "local";
  int restart_count = 0;  // how often the scheduler has restarted us
  std::string found_by = "tutti launch";
  int max_restarts = 0;      // after failures of ranks; going on without a lost node does not count
  Timeout grace{30};         // between a stop signal and SIGKILL
  Timeout failure_grace{5};  // the same after a rank has failed
  Timeout join_timeout{600};  // for the other nodes' agents
  bool prefix_output = true;  // "[rank 1] " before every line, when there are several ranks
  std::map<std::string, std::string> env;
};

// Runs to the end; the result is the exit code. Call from a thread that lives that long (the ranks
// die with the thread that started them), best before there are others. Throws ConfigError for bad
// numbers, IoError when the program cannot be started, CommError when the nodes cannot meet.
int run_agent(const AgentOptions& options);

// What every program that trains calls first: gives the rank this process is, or runs the ranks (by
// an agent here, or by exec of srun inside a Slurm allocation) and gives the exit code.
//
//   Entry entry = enter({.devices = 4}, {"/proc/self/exe", "--config", "x.yaml"}, {.run_folder =
//   "exp"}); if (!entry.rank) return entry.exit_code;
//
// `defaults` gives run_folder, max_restarts, graces; the rest is filled in.
struct Entry {
  std::optional<RankContext> rank;
  int exit_code = 0;
};
Entry enter(const LaunchRequest& request, const std::vector<std::string>& own_command,
            AgentOptions defaults);

}  // namespace tutti::launch
