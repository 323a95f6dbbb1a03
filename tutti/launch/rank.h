// Who am I? A pure function from the environment and the config's numbers to either "you are rank 3
// of 8" or "you must start the ranks".
//
//   Detection found = detect(current_environment(), {.devices = 4, .num_nodes = 2, .num_gpus = 4});
//   if (found.kind == Detection::Kind::kRank) train(found.rank);
//
// First match wins: TUTTI_LAUNCHER=local (nothing is recognised), our own launcher, torchrun,
// jsrun, mpirun, srun, PMI/PMIx, Flux, Kubeflow and plain RANK/WORLD_SIZE. Open MPI and Hydra start
// their daemons with srun inside Slurm, so their variables are trusted before SLURM_*.
//
// Every disagreement between config and launcher is a ConfigError that shows both numbers: a job
// that quietly trains on fewer GPUs than asked costs more than a job that does not start.
// Thread-safe; nothing here touches files, sockets or the real environment except
// current_environment().
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tutti::launch {

using Environment = std::map<std::string, std::string>;
Environment current_environment();

// This process's place among the ranks.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  int max_nodes = 0;             // of a run that goes on when nodes are lost: those it began with
  int device_index = -1;         // the GPU to use among those visible; -1: CPU
  std::string host;              // this machine's name
  std::string found_by;          // "srun", "torchrun", "tutti launch", "single process", ...
  std::string run_id = "local";  // the same on all ranks of one start, e.g. "slurm-42.0"
  int restart_count = 0;         // how often this run was restarted or requeued

  // Where to meet, when the launcher said so; else empty/0 and the address is found through the
  // run folder. See docs/launch.md.
  std::string master_addr;
  int master_port = 0;
  bool master_port_taken = false;  // torchrun's agent serves MASTER_PORT itself
  std::string store_address;       // "host:port" of our own agent's store
  std::string secret;              // TUTTI_SECRET, or what our own agent handed down
};

// What the config asks for.
struct LaunchRequest {
  std::optional<int> devices;        // ranks per node; empty: auto, follow the launcher
  std::optional<int> num_nodes;      // empty: auto
  std::string accelerator = "auto";  // cpu | gpu | auto
  int num_gpus = 0;                  // GPUs visible to this process
  std::vector<int> device_ids;       // devices: [1, 3]: of those visible, by local rank; empty: any
};

struct Detection {
  enum class Kind {
    kRank,        // this process is `rank`
    kStartRanks,  // start `num_local_ranks` here as node `rank.node_rank` of `rank.num_nodes`
    kStartStep,   // inside a Slurm allocation, outside a step: run `step_command` + our own command
  };
  Kind kind = Kind::kRank;
  RankContext
      rank;  // kStartRanks: only node_rank, num_nodes, host, run_id, found_by and how to meet
  int num_local_ranks = 1;
  std::vector<std::string> step_command;  // {"srun", "--nodes=2", ...}
};

// Throws ConfigError: numbers that disagree, or variables that are missing or not numbers.
Detection detect(const Environment& environment, const LaunchRequest& request);

// The rank that a launcher gave this process, as detect() sees it; empty when it is the one that starts ranks, or a
// process of its own. What is wrong with the launcher's variables is detect()'s to say.
std::optional<int> launched_rank(const Environment& environment);

}  // namespace tutti::launch
