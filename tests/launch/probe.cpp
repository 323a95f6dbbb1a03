// A rank that does as told: joins the control plane, agrees step by step, and comes to grief on
// request. Started by the tests, never by users.
//
//   launch_probe FOLDER STEPS [FAULT RANK STEP]     FAULT: kill | stop | throw | exit3 | hang
//
// Writes FOLDER/rank-N.pid at the start and FOLDER/rank-N.done at the end.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>

#include "tutti/core/error.h"
#include "tutti/launch/agent.h"
#include "tutti/launch/control.h"

namespace {

using namespace tutti;
using namespace tutti::launch;

void come_to_grief(const std::string& fault, ControlPlane& control) {
  if (fault == "kill") ::raise(SIGKILL);
  if (fault == "stop") ::raise(SIGSTOP);
  if (fault == "throw") throw DataError("utt_7: file is truncated");
  if (fault == "exit3") std::fputs("cannot go on: bad data\n", stderr), ::_exit(3);
  while (fault == "hang" && !control.failure()) ::usleep(1000);
}

int train(const RankContext& rank, const std::string& folder, int steps, int argc, char** argv) {
  std::ofstream(folder + "/rank-" + std::to_string(rank.rank) + ".pid") << ::getpid() << std::flush;
  const auto control = ControlPlane::join(rank, {.run_folder = folder,
                                                 .device = "cpu",
                                                 .join_timeout = Timeout(60),
                                                 .timeout = Timeout(3),
                                                 .heartbeat_interval = Timeout(0.2),
                                                 .heartbeat_timeout = Timeout(2)});
  try {
    if (rank.rank == 0) std::fputs(control->startup_table().c_str(), stdout);
    for (int step = 0; step < steps; ++step) {
      if (argc > 5 && rank.rank == std::stoi(argv[4]) && step == std::stoi(argv[5])) {
        come_to_grief(argv[3], *control);
      }
      control->agree({.step = step, .weight = 1, .flags = kHasData});
    }
    control->finish();
  } catch (const Error& error) {
    control->last_words(error.what());
    throw;
  }
  std::ofstream(folder + "/rank-" + std::to_string(rank.rank) + ".done")
      << rank.world_size << ' ' << rank.local_rank << ' ' << rank.node_rank << ' ' << rank.num_nodes
      << ' ' << rank.restart_count << ' ' << rank.found_by << std::flush;
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = argv[1];
  std::vector<std::string> self = {"/proc/self/exe"};
  self.insert(self.end(), argv + 1, argv + argc);
  const auto number = [](const char* name) -> std::optional<int> {
    const char* text = std::getenv(name);
    return text == nullptr ? std::nullopt : std::optional(std::stoi(text));
  };
  AgentOptions agent;
  agent.run_folder = folder;
  const Entry entry = enter({.devices = number("PROBE_DEVICES"),
                             .num_nodes = number("PROBE_NODES"),
                             .accelerator = "cpu"},
                            self, agent);
  if (!entry.rank) return entry.exit_code;
  return train(*entry.rank, folder, std::stoi(argv[2]), argc, argv);
} catch (...) {  // a main reports whatever comes
  return tutti::report_and_exit_code();
}
