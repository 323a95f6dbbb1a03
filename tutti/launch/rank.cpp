#include "tutti/launch/rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/launch/detect_internal.h"
#include "tutti/launch/socket.h"

extern char** environ;

namespace tutti::launch {

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

namespace internal {

bool Variables::has(const char* name) const {
  const auto it = environment_.find(name);
  return it != environment_.end() && !it->second.empty();
}

std::string Variables::text(const char* name, const std::string& fallback) const {
  return has(name) ? environment_.at(name) : fallback;
}

int Variables::number(const char* name) const {
  const auto value = optional_number(name);
  if (value) return *value;
  throw ConfigError(
      fmt::format("{} started this process but {} is not set", launcher_, name),
      "start it in the usual way, or set TUTTI_LAUNCHER=local to ignore the launcher");
}

std::optional<int> Variables::optional_number(const char* name) const {
  if (!has(name)) return std::nullopt;
  const std::string& text = environment_.at(name);
  try {
    std::size_t used = 0;
    const int value = std::stoi(text, &used);
    if (used == text.size() && value >= 0) return value;
  } catch (const std::logic_error&) {  // not a number, or too large: the same complaint
  }
  throw ConfigError(
      fmt::format("{}: got '{}', expected a number (set by {})", name, text, launcher_));
}

void check_equal(const char* key, std::optional<int> wanted, int found, const std::string& source,
                 const std::string& fix) {
  if (!wanted || *wanted == found) return;
  throw ConfigError(fmt::format("{}: got {}, but {}", key, *wanted, source),
                    fix.empty() ? fmt::format("set {}: {}", key, found) : fix);
}

void check_world(const LaunchRequest& request, const RankContext& rank) {
  const std::string by = rank.found_by;
  if (request.num_nodes && request.devices &&
      *request.num_nodes * *request.devices != rank.world_size) {
    throw ConfigError(fmt::format("num_nodes x devices = {} x {} = {}, but {} started {} ranks",
                                  *request.num_nodes, *request.devices,
                                  *request.num_nodes * *request.devices, by, rank.world_size),
                      "make both agree");
  }
  check_equal("num_nodes", request.num_nodes, rank.num_nodes,
              fmt::format("{} runs on {} node(s)", by, rank.num_nodes));
  check_equal("devices", request.devices, rank.local_world_size,
              fmt::format("{} started {} rank(s) on this node", by, rank.local_world_size));
}

[[noreturn]] void throw_too_few_gpus(int ranks, const std::string& host, int gpus) {
  throw ConfigError(
      fmt::format("devices: {} ranks on {}, but {} GPU(s) are visible (CUDA_VISIBLE_DEVICES or the "
                  "request to the scheduler)",
                  ranks, host, gpus),
      fmt::format("ask for {} GPUs per node, set devices: {}, or set accelerator: cpu", ranks,
                  gpus));
}

bool wants_gpu(const LaunchRequest& request) {
  const bool gpu = request.accelerator == "gpu" || request.accelerator == "cuda";
  return gpu || (request.accelerator != "cpu" && request.num_gpus > 0);
}

void assign_device(const LaunchRequest& request, RankContext& rank) {
  rank.device_index = -1;
  if (!wants_gpu(request)) return;
  if (!request.device_ids.empty()) {
    const int largest = *std::max_element(request.device_ids.begin(), request.device_ids.end());
    if (largest >= request.num_gpus)
      throw ConfigError(
          fmt::format("devices: there is no GPU {}, only {} are visible on {} (counted from 0)",
                      largest, request.num_gpus, rank.host),
          "CUDA_VISIBLE_DEVICES and schedulers count the GPUs of a job anew; give devices: a "
          "number");
    // Against a launcher with more ranks than ids, check_world has spoken already.
    rank.device_index = request.device_ids.at(static_cast<std::size_t>(rank.local_rank) %
                                              request.device_ids.size());
    return;
  }
  // --gpus-per-task=1 shows each task its own GPU as number 0.
  if (request.num_gpus == 1 && (rank.local_world_size == 1 || !rank.store_address.empty() ||
                                rank.found_by == "srun" || rank.found_by == "jsrun")) {
    rank.device_index = 0;
    return;
  }
  if (request.num_gpus >= rank.local_world_size) {
    rank.device_index = rank.local_rank;
    return;
  }
  throw_too_few_gpus(rank.local_world_size, rank.host, request.num_gpus);
}

void take_master(const Variables& variables, RankContext& rank) {
  rank.master_addr = variables.text("MASTER_ADDR");
  rank.master_port = variables.optional_number("MASTER_PORT").value_or(0);
  if (rank.secret.empty()) rank.secret = variables.text("TUTTI_SECRET");
}

}  // namespace internal

namespace {

using internal::Variables;

constexpr const char* kAlone = "single process";

void fill_nodes(RankContext& rank, int local_size) {
  rank.local_world_size = std::max(1, local_size);
  rank.num_nodes =
      std::max(1, (rank.world_size + rank.local_world_size - 1) / rank.local_world_size);
  rank.node_rank = rank.rank / rank.local_world_size;
}

RankContext from_tutti(const Environment& environment) {
  const Variables variables(environment, "tutti launch");
  RankContext rank;
  rank.found_by = variables.text("TUTTI_FOUND_BY", "tutti launch");
  rank.rank = variables.number("RANK");
  rank.world_size = variables.number("WORLD_SIZE");
  rank.local_rank = variables.number("LOCAL_RANK");
  rank.local_world_size = variables.number("LOCAL_WORLD_SIZE");
  rank.node_rank = variables.number("NODE_RANK");
  rank.num_nodes = variables.number("TUTTI_NUM_NODES");
  rank.max_nodes = variables.optional_number("TUTTI_MAX_NODES").value_or(0);
  rank.restart_count = variables.number("TUTTI_RESTART_COUNT");
  rank.run_id = variables.text("TUTTI_RUN_ID");
  rank.store_address = variables.text("TUTTI_STORE");
  rank.secret = variables.text("TUTTI_SECRET");
  rank.master_addr = variables.text("MASTER_ADDR");
  rank.master_port = variables.optional_number("MASTER_PORT").value_or(0);
  return rank;
}

RankContext from_torchrun(const Environment& environment) {
  const Variables variables(environment, "torchrun");
  RankContext rank;
  rank.found_by = "torchrun";
  rank.rank = variables.number("RANK");
  rank.world_size = variables.number("WORLD_SIZE");
  rank.local_rank = variables.number("LOCAL_RANK");
  fill_nodes(rank, variables.number("LOCAL_WORLD_SIZE"));
  rank.node_rank = variables.optional_number("GROUP_RANK").value_or(rank.node_rank);
  rank.num_nodes = variables.optional_number("GROUP_WORLD_SIZE").value_or(rank.num_nodes);
  rank.restart_count = variables.optional_number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  rank.run_id = "torchrun-" + variables.text("TORCHELASTIC_RUN_ID");
  internal::take_master(variables, rank);
  rank.master_port_taken = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return rank;
}

RankContext from_jsrun(const Environment& environment) {
  const Variables variables(environment, "jsrun");
  RankContext rank;
  rank.found_by = "jsrun";
  rank.rank = variables.number("JSM_NAMESPACE_RANK");
  rank.world_size = variables.number("JSM_NAMESPACE_SIZE");
  rank.local_rank = variables.number("JSM_NAMESPACE_LOCAL_RANK");
  // LSB_DJOB_NUMPROC counts slots, not tasks; JSM says how many of ours share the node.
  fill_nodes(rank,
             variables.optional_number("JSM_NAMESPACE_LOCAL_SIZE")
                 .value_or(variables.optional_number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1)));
  rank.run_id =
      fmt::format("lsf-{}.{}", variables.text("LSB_JOBID", "0"),
                  variables.text("JSM_JOB_STEP_ID", variables.text("PMIX_NAMESPACE", "0")));
  internal::take_master(variables, rank);
  return rank;
}

RankContext from_mpirun(const Environment& environment) {
  const Variables variables(environment, "mpirun");
  RankContext rank;
  rank.found_by = "mpirun";
  rank.rank = variables.number("OMPI_COMM_WORLD_RANK");
  rank.world_size = variables.number("OMPI_COMM_WORLD_SIZE");
  rank.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK");
  // OMPI_COMM_WORLD_NODE_RANK numbers the processes of a node, not the nodes: of no use here.
  fill_nodes(rank, variables.number("OMPI_COMM_WORLD_LOCAL_SIZE"));
  rank.run_id =
      "mpirun-" + variables.text("PMIX_NAMESPACE", variables.text("OMPI_MCA_ess_base_jobid", "0"));
  internal::take_master(variables, rank);
  return rank;
}

RankContext from_pmi(const Environment& environment) {
  const bool pmix = !environment.contains("PMI_RANK");
  const Variables variables(environment, pmix ? "PMIx" : "PMI");
  RankContext rank;
  rank.found_by = pmix ? "PMIx" : "PMI";
  rank.rank = variables.number(pmix ? "PMIX_RANK" : "PMI_RANK");
  // PMIx hands out its size only through its library; some launchers export it beside.
  rank.world_size = pmix ? variables.number("PMIX_SIZE") : variables.number("PMI_SIZE");
  rank.local_rank = variables.optional_number("MPI_LOCALRANKID")
                        .value_or(variables.optional_number("PMI_LOCAL_RANK").value_or(0));
  fill_nodes(rank, variables.optional_number("MPI_LOCALNRANKS")
                       .value_or(variables.optional_number("PMI_LOCAL_SIZE").value_or(1)));
  rank.run_id = "mpi-" + variables.text("PMIX_NAMESPACE",
                                        variables.text("PMI_JOBID", variables.text("PMI_ID", "0")));
  if (!pmix) rank.run_id = "mpi-" + variables.text("PMI_JOBID", "0");
  internal::take_master(variables, rank);
  return rank;
}

RankContext from_flux(const Environment& environment) {
  const Variables variables(environment, "flux");
  RankContext rank;
  rank.found_by = "flux";
  rank.rank = variables.number("FLUX_TASK_RANK");
  rank.world_size = variables.number("FLUX_JOB_SIZE");
  rank.local_rank = variables.number("FLUX_TASK_LOCAL_ID");
  const int num_nodes = variables.optional_number("FLUX_JOB_NNODES").value_or(1);
  fill_nodes(rank, (rank.world_size + num_nodes - 1) / std::max(1, num_nodes));
  rank.run_id = "flux-" + variables.text("FLUX_JOB_ID", "0");
  internal::take_master(variables, rank);
  return rank;
}

// RANK and WORLD_SIZE without a launcher that we know. Kubeflow's operators count pods in them when
// PET_NPROC_PER_NODE asks each pod to start several ranks.
Detection from_plain(const Environment& environment, const LaunchRequest& request) {
  const bool kubeflow =
      environment.contains("KUBERNETES_SERVICE_HOST") || environment.contains("PET_NNODES");
  const Variables variables(environment, kubeflow ? "Kubeflow" : "RANK and WORLD_SIZE");
  Detection found;
  RankContext& rank = found.rank;
  rank.found_by = kubeflow ? "Kubeflow" : "RANK and WORLD_SIZE";
  rank.rank = variables.number("RANK");
  rank.world_size = variables.number("WORLD_SIZE");
  internal::take_master(variables, rank);
  if (rank.master_addr.empty()) {
    throw ConfigError("RANK and WORLD_SIZE are set but MASTER_ADDR is not",
                      "set MASTER_ADDR and MASTER_PORT, or unset RANK and WORLD_SIZE");
  }
  rank.run_id = fmt::format("env-{}-{}", rank.master_addr, rank.master_port);
  const auto local_rank = variables.optional_number("LOCAL_RANK");
  if (local_rank) {
    rank.local_rank = *local_rank;
    fill_nodes(rank,
               variables.optional_number("LOCAL_WORLD_SIZE").value_or(request.devices.value_or(1)));
    return found;
  }
  const std::string per_node = variables.text("PET_NPROC_PER_NODE", "1");
  const bool word = per_node == "auto" || per_node == "gpu" || per_node == "cpu";
  const int per_pod = word ? std::max(1, per_node == "cpu" ? 1 : request.num_gpus)
                           : variables.optional_number("PET_NPROC_PER_NODE").value_or(1);
  if (per_pod == 1 && request.devices.value_or(1) == 1) {
    rank.node_rank = rank.rank;
    rank.num_nodes = rank.world_size;
    return found;
  }
  rank.num_nodes = variables.optional_number("PET_NNODES").value_or(rank.world_size);
  rank.node_rank = variables.optional_number("PET_NODE_RANK").value_or(rank.rank);
  internal::check_equal("devices", request.devices, per_pod,
                        fmt::format("PET_NPROC_PER_NODE is {}", per_node));
  internal::check_equal("num_nodes", request.num_nodes, rank.num_nodes,
                        fmt::format("Kubeflow runs {} pod(s)", rank.num_nodes));
  found.kind = Detection::Kind::kStartRanks;
  found.num_local_ranks = per_pod;
  return found;
}

Detection from_nothing(const Environment& environment, const LaunchRequest& request) {
  const Variables variables(environment, "this machine");
  Detection found;
  found.rank.num_nodes = request.num_nodes.value_or(1);
  found.rank.node_rank = variables.optional_number("NODE_RANK").value_or(0);
  found.rank.secret = variables.text("TUTTI_SECRET");
  internal::take_master(variables, found.rank);
  if (found.rank.num_nodes > 1 && !variables.has("NODE_RANK")) {
    throw ConfigError(
        fmt::format("num_nodes: got {}, but no launcher started this process",
                    found.rank.num_nodes),
        "use srun or mpirun; or start it once per node with NODE_RANK, MASTER_ADDR and MASTER_PORT "
        "set; or use tutti launch");
  }
  if (found.rank.node_rank >= found.rank.num_nodes) {
    throw ConfigError(fmt::format("NODE_RANK is {}, but num_nodes is {}", found.rank.node_rank,
                                  found.rank.num_nodes));
  }
  const bool gpus = request.accelerator != "cpu" && request.num_gpus > 0;
  found.num_local_ranks = request.devices.value_or(gpus ? request.num_gpus : 1);
  const bool alone = found.num_local_ranks == 1 && found.rank.num_nodes == 1;
  found.kind = alone ? Detection::Kind::kRank : Detection::Kind::kStartRanks;
  found.rank.found_by = alone ? kAlone : "tutti";
  if (alone) found.rank.master_addr.clear();
  return found;
}

Detection find(const Environment& environment, const LaunchRequest& request) {
  const auto has = [&](const char* name) { return environment.contains(name); };
  Detection found;
  if (has("TUTTI_RUN_ID") && has("TUTTI_NUM_NODES")) {
    found.rank = from_tutti(environment);
  } else if (environment.contains("TUTTI_LAUNCHER") &&
             environment.at("TUTTI_LAUNCHER") == "local") {
    return from_nothing(environment, request);
  } else if (has("TORCHELASTIC_RUN_ID")) {
    found.rank = from_torchrun(environment);
  } else if (has("LSB_JOBID") && has("JSM_NAMESPACE_RANK")) {
    found.rank = from_jsrun(environment);
  } else if (has("OMPI_COMM_WORLD_SIZE")) {
    found.rank = from_mpirun(environment);
  } else if (internal::in_slurm(environment) && !internal::hydra_in_slurm(environment)) {
    return internal::from_slurm(environment, request);
  } else if (has("PMI_RANK") || (has("PMIX_RANK") && has("PMIX_SIZE"))) {
    found.rank = from_pmi(environment);
  } else if (has("FLUX_TASK_RANK")) {
    found.rank = from_flux(environment);
  } else if (has("RANK") && has("WORLD_SIZE")) {
    return from_plain(environment, request);
  } else {
    return from_nothing(environment, request);
  }
  return found;
}

}  // namespace

Detection detect(const Environment& environment, const LaunchRequest& request) {
  if (request.devices && *request.devices < 1) {
    throw ConfigError(
        fmt::format("devices: got {}, expected 1 or more, or auto", *request.devices));
  }
  if (request.num_nodes && *request.num_nodes < 1) {
    throw ConfigError(
        fmt::format("num_nodes: got {}, expected 1 or more, or auto", *request.num_nodes));
  }
  if (request.accelerator == "gpu" && request.num_gpus == 0 &&
      !environment.contains("SLURM_JOB_ID")) {
    throw ConfigError("accelerator: gpu, but no GPU is visible to this process",
                      "check nvidia-smi and CUDA_VISIBLE_DEVICES, or set accelerator: cpu");
  }
  Detection found = find(environment, request);
  RankContext& rank = found.rank;
  rank.host = internal::Variables(environment, "").text("SLURMD_NODENAME", host_name());
  // Said once, by who starts the ranks, and not by each of them.
  if (found.kind == Detection::Kind::kStartRanks && internal::wants_gpu(request) &&
      request.num_gpus < found.num_local_ranks)
    internal::throw_too_few_gpus(found.num_local_ranks, rank.host, request.num_gpus);
  if (found.kind != Detection::Kind::kRank) return found;
  if (rank.rank >= rank.world_size) {
    throw ConfigError(
        fmt::format("{} says rank {} of {}", rank.found_by, rank.rank, rank.world_size));
  }
  LaunchRequest wanted = request;
  // The config says how many nodes there are at best.
  if (rank.max_nodes > 0 && wanted.num_nodes == rank.max_nodes) wanted.num_nodes = rank.num_nodes;
  internal::check_world(wanted, rank);
  internal::assign_device(request, rank);
  return found;
}

std::optional<int> launched_rank(const Environment& environment) {
  try {
    const Detection found = find(environment, {});
    const bool started = found.kind == Detection::Kind::kRank && found.rank.found_by != kAlone;
    return started ? std::optional(found.rank.rank) : std::nullopt;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

}  // namespace tutti::launch
