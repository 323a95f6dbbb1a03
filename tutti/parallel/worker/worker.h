// A worker: connects to the driver of a run folder, builds the env once, runs leases of items.
//
// A program whose classes are to run on workers begins its main with
//
//   if (const auto code = worker_main_if_requested(argc, argv)) return *code;
//
// because a worker is the same program, started as `PROGRAM worker --run FOLDER --id N`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace tutti::parallel {

class Env;

struct WorkerOptions {
  std::filesystem::path run_folder;
  int id = 0;
  std::string life;             // of the driver that asked for this worker; empty: whoever is there
  double death_timeout_s = 60;  // leave when the driver is silent and cannot be reached so long
  std::uint64_t memory_limit = 0;  // bytes of this process and its children; 0: none
  double drain_at = 0;             // unix seconds: finish the running item and leave; 0: never
  double term_grace_s = 60;        // the running item may take so long after SIGTERM
  std::string async_generation;    // not empty: an asynchronous run, no driver
  std::string async_name;          // of this process in it
  int term_fd = -1;                // can be read once SIGTERM has come; -1: nobody listens
  bool own_process = true;         // false: a thread of the driver (no signals, no exit)
};

// Runs until the driver says stop, the driver is gone, or SIGTERM; returns the exit code.
int run_worker(const WorkerOptions& options);

// If the command line asks for worker mode: be a worker and return its exit code.
std::optional<int> worker_main_if_requested(int argc, char** argv);
// The same without the check; argv as after the program's name: {"worker", "--run", FOLDER, ...}.
int worker_main(int argc, char** argv);

// The env of the worker this thread belongs to. REQUIRES: called from an item or a plugin.
Env& get_worker();

}  // namespace tutti::parallel
