// tutti doctor --gpus: ranks of this node (or of whoever starts it: srun, tutti launch, ...) check
// their sums and measure how fast they reach each other, before the first training does.
#include <fmt/format.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "apps/arguments.h"
#include "tutti/config/gpu_count.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/core/units.h"
#include "tutti/launch/agent.h"
#include "tutti/trainer/collectives/trial.h"

namespace {

using namespace tutti;

void print(const trainer::World& world, const std::string& device,
           const std::vector<trainer::Speed>& speeds, bool as_json) {
  const int size = world.control->world_size();
  if (as_json) {
    Json rows = Json::array();
    for (const auto& s : speeds)
      rows.push_back({{"operation", s.operation},
                      {"bytes", s.num_bytes},
                      {"seconds", s.seconds},
                      {"bytes_per_second", s.bytes_per_second}});
    std::puts(Json{{"ranks", size},
                   {"nodes", world.rank.num_nodes},
                   {"device", device},
                   {"transport", world.collectives->name()},
                   {"right", true},
                   {"speeds", rows}}
                  .dump()
                  .c_str());
    return;
  }
  if (size > 1)
    fmt::print(
        "{} ranks on {} node{} over {}: all_reduce, broadcast, all_gather and reduce_scatter "
        "give the right numbers\n",
        size, world.rank.num_nodes, world.rank.num_nodes == 1 ? "" : "s",
        world.collectives->name());
  else
    fmt::print("one rank: there is nobody to exchange anything with\n");
  fmt::print("{:<12} {:>10} {:>12} {:>12}\n", "operation", "size", "time", "rate");
  for (const auto& s : speeds)
    fmt::print("{:<12} {:>10} {:>9.3f} ms {:>7.2f} GB/s\n", s.operation,
               format_bytes(static_cast<std::uint64_t>(s.num_bytes)), s.seconds * 1e3,
               s.bytes_per_second / 1e9);
}

int run_program(int argc, char** argv) {
  CLI::App app{"All-reduce and bandwidth over the GPUs of this node", "tutti doctor"};
  bool gpus = false, json = false, quiet = false;
  int cpu_ranks = 0;
  app.add_flag("--gpus", gpus, "test the ranks of this node, one per visible GPU");
  app.add_option("--cpu_ranks,--cpu-ranks", cpu_ranks, "ranks on CPUs instead")
      ->check(CLI::Range(1, 64));
  app.add_flag("--json", json, "as JSON");
  app.add_flag("--quiet", quiet, "print nothing");
  if (const auto code = apps::parse_arguments(app, argc, argv)) return *code;
  log::configure(
      {.level = json || quiet ? log::Level::kWarning : log::Level::kInfo, .stage = "doctor"});
  launch::LaunchRequest request;
  request.accelerator = cpu_ranks > 0 ? "cpu" : "gpu";
  request.num_gpus = cpu_ranks > 0 ? 0 : config::count_visible_gpus();
  request.devices = cpu_ranks > 0 ? cpu_ranks : request.num_gpus;
  if (cpu_ranks == 0 && !torch::cuda::is_available())
    throw ConfigError("GPUs are visible, but this tutti's libtorch cannot use them",
                      "build it with CUDA: docs/build-cuda.md");
  std::vector<std::string> self(argv, argv + argc);
  self[0] = "/proc/self/exe";
  launch::AgentOptions agent;
  agent.run_folder = std::filesystem::current_path();
  agent.prefix_output = false;  // one rank speaks
  const launch::Entry entry = launch::enter(request, self, agent);
  if (!entry.rank) return entry.exit_code;

  const std::string device =
      entry.rank->device_index >= 0 ? fmt::format("cuda:{}", entry.rank->device_index) : "cpu";
  if (device == "cpu") at::set_num_threads(1);
  trainer::World world = trainer::join_world(
      *entry.rank, {.run_folder = agent.run_folder, .device = device, .timeout = 60});
  trainer::check_collectives(world, at::Device(device));
  const bool speaks = entry.rank->rank == 0;
  const auto speeds =
      trainer::measure_collectives(world, at::Device(device), [&](const std::string& what) {
        if (speaks) log::info("{} ...", what);
      });
  world.control->finish();
  if (speaks && !quiet) print(world, device, speeds, json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  try {
    code = run_program(argc, argv);
  } catch (...) {  // whatever it is becomes a message and a documented exit code
    code = tutti::report_and_exit_code();
  }
  std::fflush(nullptr);
  std::_Exit(code);  // a transport's thread may still wait for a rank that is lost
}
