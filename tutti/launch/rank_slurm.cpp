// Slurm's half of detect(): steps with one task per GPU, steps with one task per node, and
// allocations (sbatch, salloc) in which nobody has called srun yet.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/launch/detect_internal.h"
#include "tutti/launch/nodelist.h"

namespace tutti::launch::internal {
namespace {

// Slurm's reserved step ids: batch script, interactive step, external step.
bool is_real_step(const std::string& step_id) {
  if (step_id.empty() || step_id.size() > 10) return false;
  if (!std::all_of(step_id.begin(), step_id.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return false;
  }
  return std::stoull(step_id) < 0xfffffff0ULL;
}

struct Step {
  int num_tasks = 1;
  int num_nodes = 1;
  int tasks_here = 1;  // on this node
  bool even = true;    // the same number on every node
  std::string counts;  // as Slurm writes them
};

Step read_step(const Variables& variables) {
  Step step;
  step.num_tasks = variables.optional_number("SLURM_STEP_NUM_TASKS")
                       .value_or(variables.optional_number("SLURM_NTASKS").value_or(1));
  step.num_nodes = variables.optional_number("SLURM_STEP_NUM_NODES")
                       .value_or(variables.optional_number("SLURM_NNODES").value_or(1));
  step.counts = variables.text("SLURM_STEP_TASKS_PER_NODE", variables.text("SLURM_TASKS_PER_NODE"));
  const int node = variables.optional_number("SLURM_NODEID").value_or(0);
  step.tasks_here = std::max(1, step.num_tasks / std::max(1, step.num_nodes));
  if (!step.counts.empty()) {
    const std::vector<int> counts = expand_task_counts(step.counts);
    if (node < static_cast<int>(counts.size())) step.tasks_here = counts[node];
    step.even =
        std::all_of(counts.begin(), counts.end(), [&](int n) { return n == counts.front(); });
  }
  return step;
}

// "42", or "40_7" for element 7 of an array: what scontrol takes.
std::string job_name(const Variables& variables) {
  if (variables.has("SLURM_ARRAY_JOB_ID") && variables.has("SLURM_ARRAY_TASK_ID")) {
    return variables.text("SLURM_ARRAY_JOB_ID") + "_" + variables.text("SLURM_ARRAY_TASK_ID");
  }
  return variables.text("SLURM_JOB_ID");
}

Detection in_step(const Variables& variables, const LaunchRequest& request) {
  const Step step = read_step(variables);
  Detection found;
  RankContext& rank = found.rank;
  rank.found_by = "srun";
  rank.num_nodes = step.num_nodes;
  rank.node_rank = variables.number("SLURM_NODEID");
  rank.restart_count = variables.optional_number("SLURM_RESTART_COUNT").value_or(0);
  rank.run_id =
      fmt::format("slurm-{}.{}", job_name(variables), variables.text("SLURM_STEP_ID", "0"));
  take_master(variables, rank);
  // A shell of `srun --pty` can be asked for two nodes; a MASTER_PORT of the batch script stays
  // ours.
  check_equal("num_nodes", request.num_nodes, step.num_nodes,
              fmt::format("srun runs this step on {} node(s) with {} task(s)", step.num_nodes,
                          step.num_tasks),
              fmt::format("use srun --nodes={} or set num_nodes: {} (or auto)",
                          request.num_nodes.value_or(0), step.num_nodes));

  const bool one_per_node = step.num_tasks == step.num_nodes;
  const bool gpus = request.accelerator != "cpu" && request.num_gpus > 0;
  const int wanted =
      request.devices.value_or(one_per_node ? (gpus ? request.num_gpus : 1) : step.tasks_here);
  if (!request.devices) {
    const auto per_node = variables.optional_number("SLURM_NTASKS_PER_NODE");
    if (per_node && wanted == 1 && *per_node * step.num_nodes > step.num_tasks) {
      throw ConfigError(
          fmt::format("srun started {} task(s), but {} node(s) x --ntasks-per-node={} = {}",
                      step.num_tasks, step.num_nodes, *per_node, *per_node * step.num_nodes),
          fmt::format("use srun --ntasks={}, or set devices: {} if fewer is what you want",
                      *per_node * step.num_nodes, step.tasks_here));
    }
  }
  if (one_per_node && wanted > 1) {
    found.kind = Detection::Kind::kStartRanks;
    found.num_local_ranks = wanted;
    rank.found_by = "srun, one task per node";
    if (gpus && wanted > request.num_gpus) {
      throw ConfigError(
          fmt::format("devices: got {}, but this task sees {} GPU(s)", wanted, request.num_gpus),
          fmt::format("ask for --gpus-per-node={}", wanted));
    }
    return found;
  }
  if (request.devices && (wanted != step.tasks_here || !step.even)) {
    throw ConfigError(
        fmt::format(
            "devices: got {}, but srun started {} task(s) on this node (tasks per node: {})",
            wanted, step.tasks_here, step.counts.empty() ? "unknown" : step.counts),
        fmt::format(
            "use srun --ntasks-per-node={} (or 1: then Tutti starts the ranks), or set devices: {}",
            wanted, step.even ? fmt::format("{} (or auto)", step.tasks_here) : "auto"));
  }
  rank.rank = variables.number("SLURM_PROCID");
  rank.world_size = step.num_tasks;
  rank.local_rank = variables.number("SLURM_LOCALID");
  rank.local_world_size = step.tasks_here;
  return found;
}

Detection in_allocation(const Variables& variables, const LaunchRequest& request) {
  Detection found;
  found.kind = Detection::Kind::kStartStep;
  found.rank.found_by = "Slurm allocation";
  found.rank.run_id = "slurm-" + job_name(variables);
  found.rank.restart_count = variables.optional_number("SLURM_RESTART_COUNT").value_or(0);
  const int allocated = variables.optional_number("SLURM_JOB_NUM_NODES")
                            .value_or(variables.optional_number("SLURM_NNODES").value_or(1));
  const int num_nodes = request.num_nodes.value_or(allocated);
  if (num_nodes > allocated) {
    throw ConfigError(
        fmt::format("num_nodes: got {}, but job {} has {} node(s)", num_nodes, job_name(variables),
                    allocated),
        fmt::format("submit with --nodes={} or set num_nodes: {} (or auto)", num_nodes, allocated));
  }
  found.rank.num_nodes = num_nodes;
  // Tasks per node as the job was submitted: an explicit number, else what --ntasks comes to.
  int tasks = variables.optional_number("SLURM_NTASKS_PER_NODE").value_or(0);
  if (tasks == 0 && variables.has("SLURM_NTASKS")) {
    tasks = variables.number("SLURM_NTASKS") / std::max(1, allocated);
  }
  const int gpus_here = variables.optional_number("SLURM_GPUS_ON_NODE").value_or(request.num_gpus);
  const bool gpus = request.accelerator != "cpu" && gpus_here > 0;
  const int devices = request.devices.value_or(gpus ? gpus_here : std::max(1, tasks));
  if (gpus && devices > gpus_here) {
    throw ConfigError(fmt::format("devices: got {}, but job {} has {} GPU(s) on each node", devices,
                                  job_name(variables), gpus_here),
                      fmt::format("submit with --gpus-per-node={}", devices));
  }
  found.num_local_ranks = devices;
  // One task per GPU if the job was submitted so (its CPUs are laid out that way), else one task
  // per node, which starts the ranks itself.
  const int per_node = tasks == devices ? devices : 1;
  found.step_command = {"srun", fmt::format("--nodes={}", num_nodes),
                        fmt::format("--ntasks={}", num_nodes * per_node),
                        fmt::format("--ntasks-per-node={}", per_node), "--kill-on-bad-exit=1"};
  // Since 22.05 srun no longer takes --cpus-per-task from the job.
  const std::string cpus = per_node == 1 && tasks != 1 ? variables.text("SLURM_CPUS_ON_NODE")
                                                       : variables.text("SLURM_CPUS_PER_TASK");
  if (!cpus.empty()) found.step_command.push_back("--cpus-per-task=" + cpus);
  return found;
}

}  // namespace

bool in_slurm(const Environment& environment) { return environment.contains("SLURM_JOB_ID"); }

bool hydra_in_slurm(const Environment& environment) {
  const Variables variables(environment, "mpirun");
  if (!variables.has("PMI_RANK") || !variables.has("PMI_SIZE")) return false;
  if (!variables.has("SLURM_STEP_NUM_TASKS")) return true;
  return variables.number("PMI_SIZE") != variables.number("SLURM_STEP_NUM_TASKS");
}

Detection from_slurm(const Environment& environment, const LaunchRequest& request) {
  const Variables variables(environment, "srun");
  // `srun -n 4 --pty bash` has four tasks but one shell; what runs in it is not one of the tasks.
  const bool shell = variables.has("SLURM_PTY_PORT") && read_step(variables).num_tasks > 1;
  if (is_real_step(variables.text("SLURM_STEP_ID")) && !shell) return in_step(variables, request);
  Detection found = in_allocation(variables, request);
  if (shell) found.step_command.push_back("--overlap");
  return found;
}

}  // namespace tutti::launch::internal
