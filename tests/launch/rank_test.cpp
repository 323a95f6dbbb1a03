#include "tutti/launch/rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = Detection::Kind;

std::string error_of(const Environment& environment, const LaunchRequest& request) {
  try {
    detect(environment, request);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

// rank/world local/local_world node/nodes
std::string places(const RankContext& r) {
  return std::to_string(r.rank) + "/" + std::to_string(r.world_size) + " " +
         std::to_string(r.local_rank) + "/" + std::to_string(r.local_world_size) + " " +
         std::to_string(r.node_rank) + "/" + std::to_string(r.num_nodes);
}

Environment torchrun() {
  return {{"TORCHELASTIC_RUN_ID", "abc"},
          {"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"GROUP_RANK", "1"},
          {"GROUP_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "n0"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
}

// A step of two nodes with `per_node` tasks each; this is task 1 of node 1.
Environment srun(int per_node) {
  const std::string total = std::to_string(2 * per_node);
  return {{"SLURM_JOB_ID", "42"},
          {"SLURM_STEP_ID", "3"},
          {"SLURM_PROCID", std::to_string(per_node == 1 ? 1 : per_node + 1)},
          {"SLURM_LOCALID", per_node == 1 ? "0" : "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_NTASKS", total},
          {"SLURM_STEP_NUM_TASKS", total},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", std::to_string(per_node) + "(x2)"},
          {"SLURM_STEP_NODELIST", "node[1-2]"},
          {"SLURMD_NODENAME", "node2"}};
}

Environment sbatch() {
  return {{"SLURM_JOB_ID", "42"},       {"SLURM_JOB_NUM_NODES", "2"},     {"SLURM_NNODES", "2"},
          {"SLURM_PROCID", "0"},        {"SLURM_LOCALID", "0"},           {"SLURM_NODEID", "0"},
          {"SLURM_CPUS_ON_NODE", "16"}, {"SLURM_TASKS_PER_NODE", "1(x2)"}};
}

TEST(Detect, AloneIsASingleProcess) {
  const auto found = detect({}, {});
  EXPECT_EQ(found.kind, Kind::kRank);
  EXPECT_EQ(places(found.rank), "0/1 0/1 0/1");
  EXPECT_EQ(found.rank.found_by, "single process");
  EXPECT_EQ(found.rank.device_index, -1);
  EXPECT_FALSE(found.rank.host.empty());
}

TEST(Detect, LocalRanksFollowConfigOrGpus) {
  EXPECT_EQ(detect({}, {.devices = 3}).num_local_ranks, 3);
  EXPECT_EQ(detect({}, {.devices = 3}).kind, Kind::kStartRanks);
  EXPECT_EQ(detect({}, {.num_gpus = 4}).num_local_ranks, 4);
  EXPECT_EQ(detect({}, {.accelerator = "cpu", .num_gpus = 4}).kind, Kind::kRank);
  EXPECT_EQ(detect({}, {.num_gpus = 1}).rank.device_index, 0);
  EXPECT_EQ(detect({}, {.devices = 1, .num_gpus = 4, .device_ids = {3}}).rank.device_index, 3);
  EXPECT_THAT(error_of({}, {.accelerator = "gpu"}), HasSubstr("no GPU is visible"));
  EXPECT_THAT(error_of({}, {.devices = 4, .accelerator = "gpu", .num_gpus = 2}),
              AllOf(HasSubstr("4 ranks"), HasSubstr("2 GPU(s)"), HasSubstr("set devices: 2")))
      << "before any of them is started";
  EXPECT_THAT(error_of({}, {.devices = 0}), HasSubstr("devices: got 0"));
  EXPECT_THAT(error_of({}, {.num_nodes = 2}), HasSubstr("num_nodes: got 2, but no launcher"));
  EXPECT_EQ(detect({{"NODE_RANK", "1"}, {"MASTER_ADDR", "a"}}, {.devices = 2, .num_nodes = 2})
                .rank.node_rank,
            1);
}

TEST(Detect, Torchrun) {
  const auto found = detect(torchrun(), {});
  EXPECT_EQ(found.kind, Kind::kRank);
  EXPECT_EQ(places(found.rank), "5/8 1/4 1/2");
  EXPECT_EQ(found.rank.restart_count, 2);
  EXPECT_TRUE(found.rank.master_port_taken);
  EXPECT_EQ(found.rank.master_addr, "n0");
  EXPECT_EQ(places(detect(torchrun(), {.devices = 4, .num_nodes = 2}).rank), "5/8 1/4 1/2");
  EXPECT_THAT(error_of(torchrun(), {.devices = 8, .num_nodes = 2}),
              HasSubstr("2 x 8 = 16, but torchrun started 8"));
  EXPECT_THAT(error_of(torchrun(), {.devices = 8}),
              HasSubstr("devices: got 8, but torchrun started 4"));
  auto broken = torchrun();
  broken.erase("LOCAL_RANK");
  EXPECT_THAT(error_of(broken, {}), HasSubstr("LOCAL_RANK is not set"));
  broken["LOCAL_RANK"] = "two";
  EXPECT_THAT(error_of(broken, {}), HasSubstr("LOCAL_RANK: got 'two'"));
}

TEST(Detect, GpusPerRank) {
  EXPECT_EQ(detect(torchrun(), {.num_gpus = 4}).rank.device_index, 1);
  EXPECT_EQ(detect(torchrun(), {.num_gpus = 8, .device_ids = {0, 2, 4, 6}}).rank.device_index, 2);
  EXPECT_THAT(error_of(torchrun(), {.num_gpus = 4, .device_ids = {0, 1, 2, 4}}),
              HasSubstr("there is no GPU 4, only 4 are visible"));
  EXPECT_THAT(error_of(torchrun(), {.num_gpus = 2}),
              AllOf(HasSubstr("4 ranks"), HasSubstr("2 GPU(s)")));
  // --gpus-per-task=1: every task sees its own GPU as number 0.
  EXPECT_EQ(detect(srun(4), {.num_gpus = 1}).rank.device_index, 0);
  EXPECT_EQ(detect(srun(4), {.num_gpus = 4}).rank.device_index, 1);
}

TEST(Detect, SrunOneTaskPerGpu) {
  for (const LaunchRequest& request :
       {LaunchRequest{}, LaunchRequest{.devices = 4, .num_nodes = 2}}) {
    const auto found = detect(srun(4), request);
    EXPECT_EQ(found.kind, Kind::kRank);
    EXPECT_EQ(places(found.rank), "5/8 1/4 1/2");
    EXPECT_EQ(found.rank.found_by, "srun");
    EXPECT_EQ(found.rank.run_id, "slurm-42.3");
    EXPECT_EQ(found.rank.host, "node2");
  }
}

TEST(Detect, SrunOneTaskPerNode) {
  const auto found = detect(srun(1), {.devices = 4, .num_nodes = 2});
  EXPECT_EQ(found.kind, Kind::kStartRanks);
  EXPECT_EQ(found.num_local_ranks, 4);
  EXPECT_EQ(found.rank.node_rank, 1);
  EXPECT_EQ(found.rank.num_nodes, 2);
  EXPECT_EQ(found.rank.found_by, "srun, one task per node");
  EXPECT_EQ(detect(srun(1), {.num_gpus = 8}).num_local_ranks, 8)
      << "auto follows the GPUs of the task";
  EXPECT_EQ(detect(srun(1), {.accelerator = "cpu"}).kind, Kind::kRank);
  EXPECT_THAT(error_of(srun(1), {.devices = 8, .num_gpus = 4}),
              HasSubstr("devices: got 8, but this task sees 4"));
}

TEST(Detect, SrunMismatchesShowBothNumbers) {
  EXPECT_THAT(error_of(srun(4), {.devices = 8}),
              HasSubstr("devices: got 8, but srun started 4 task(s)"));
  EXPECT_THAT(error_of(srun(4), {.num_nodes = 4}),
              HasSubstr("num_nodes: got 4, but srun runs this step on 2"));
  auto uneven = srun(4);
  uneven["SLURM_STEP_TASKS_PER_NODE"] = "5,3";
  EXPECT_THAT(error_of(uneven, {.devices = 3}), HasSubstr("tasks per node: 5,3"));
  EXPECT_EQ(places(detect(uneven, {}).rank), "5/8 1/3 1/2") << "auto follows an uneven step";
  auto fewer = srun(1);
  fewer["SLURM_NTASKS_PER_NODE"] = "4";
  EXPECT_THAT(error_of(fewer, {}), AllOf(HasSubstr("srun started 2 task(s)"),
                                         HasSubstr("2 node(s) x --ntasks-per-node=4 = 8")));
  EXPECT_EQ(detect(fewer, {.devices = 1, .num_nodes = 2}).kind, Kind::kRank)
      << "explicit numbers are taken at their word";
}

TEST(Detect, SrunWithoutNtasksPerNodeIsLegal) {
  auto environment = srun(4);
  environment.erase("SLURM_STEP_TASKS_PER_NODE");
  EXPECT_EQ(places(detect(environment, {.devices = 4}).rank), "5/8 1/4 1/2");
}

TEST(Detect, RequeuedAndArrayJobsHaveNamesOfTheirOwn) {
  auto environment = srun(4);
  environment["SLURM_RESTART_COUNT"] = "2";
  environment["SLURM_ARRAY_JOB_ID"] = "40";
  environment["SLURM_ARRAY_TASK_ID"] = "7";
  const auto found = detect(environment, {});
  EXPECT_EQ(found.rank.restart_count, 2);
  EXPECT_EQ(found.rank.run_id, "slurm-40_7.3");
}

TEST(Detect, AllocationWithoutSrunStartsTheStep) {
  const auto found = detect(sbatch(), {.devices = 4, .num_nodes = 2});
  EXPECT_EQ(found.kind, Kind::kStartStep);
  EXPECT_THAT(found.step_command,
              ElementsAre("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1",
                          "--kill-on-bad-exit=1", "--cpus-per-task=16"));
  auto per_gpu = sbatch();
  per_gpu["SLURM_NTASKS_PER_NODE"] = "4";
  per_gpu["SLURM_CPUS_PER_TASK"] = "8";
  EXPECT_THAT(detect(per_gpu, {.devices = 4}).step_command,
              ElementsAre("srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4",
                          "--kill-on-bad-exit=1", "--cpus-per-task=8"));
  EXPECT_THAT(error_of(sbatch(), {.num_nodes = 4}),
              HasSubstr("num_nodes: got 4, but job 42 has 2 node(s)"));
  auto gpus = sbatch();
  gpus["SLURM_GPUS_ON_NODE"] = "2";
  EXPECT_THAT(error_of(gpus, {.devices = 4}), HasSubstr("devices: got 4, but job 42 has 2 GPU(s)"));
  EXPECT_EQ(detect(gpus, {}).num_local_ranks, 2);
  auto batch_step = sbatch();
  batch_step["SLURM_STEP_ID"] = "4294967291";  // Slurm's number for the batch script itself
  EXPECT_EQ(detect(batch_step, {.devices = 2}).kind, Kind::kStartStep);
  auto local = sbatch();
  local["TUTTI_LAUNCHER"] = "local";
  EXPECT_EQ(detect(local, {.devices = 2}).kind, Kind::kStartRanks);
}

TEST(Detect, ShellOfSeveralTasksIsNotARank) {
  auto shell = srun(4);
  shell["SLURM_PTY_PORT"] = "4000";
  const auto found = detect(shell, {.devices = 4});
  EXPECT_EQ(found.kind, Kind::kStartStep);
  EXPECT_EQ(found.step_command.back(), "--overlap");
}

TEST(Detect, OpenMpiAlsoInsideSlurm) {
  Environment environment = {
      {"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_NAMESPACE", "123"}};
  EXPECT_EQ(places(detect(environment, {}).rank), "3/4 1/2 1/2");
  environment.merge(srun(1));  // mpirun started its daemons with srun
  EXPECT_EQ(places(detect(environment, {}).rank), "3/4 1/2 1/2");
  EXPECT_EQ(detect(environment, {}).rank.found_by, "mpirun");
  EXPECT_THAT(error_of(environment, {.devices = 4}),
              HasSubstr("devices: got 4, but mpirun started 2"));
}

TEST(Detect, HydraAlsoInsideSlurm) {
  Environment environment = {
      {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_EQ(places(detect(environment, {}).rank), "3/4 1/2 1/2");
  environment.merge(srun(1));
  EXPECT_EQ(places(detect(environment, {}).rank), "3/4 1/2 1/2");
  // srun --mpi=pmi2: PMI and Slurm say the same; then Slurm knows more.
  auto pmi2 = srun(2);
  pmi2["PMI_RANK"] = "3";
  pmi2["PMI_SIZE"] = "4";
  EXPECT_EQ(detect(pmi2, {}).rank.found_by, "srun");
}

TEST(Detect, JsrunFluxKubeflow) {
  const Environment jsrun = {{"LSB_JOBID", "9"},
                             {"JSM_NAMESPACE_RANK", "7"},
                             {"JSM_NAMESPACE_SIZE", "12"},
                             {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                             {"JSM_NAMESPACE_LOCAL_SIZE", "6"},
                             {"OMPI_COMM_WORLD_SIZE", "12"}};
  EXPECT_EQ(places(detect(jsrun, {}).rank), "7/12 1/6 1/2");
  EXPECT_EQ(detect(jsrun, {}).rank.found_by, "jsrun");
  const Environment flux = {{"FLUX_TASK_RANK", "3"},
                            {"FLUX_JOB_SIZE", "4"},
                            {"FLUX_TASK_LOCAL_ID", "1"},
                            {"FLUX_JOB_NNODES", "2"}};
  EXPECT_EQ(places(detect(flux, {}).rank), "3/4 1/2 1/2");
  Environment kubeflow = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                          {"RANK", "1"},
                          {"WORLD_SIZE", "3"},
                          {"MASTER_ADDR", "job-master-0"},
                          {"MASTER_PORT", "23456"}};
  EXPECT_EQ(places(detect(kubeflow, {}).rank), "1/3 0/1 1/3");
  EXPECT_EQ(detect(kubeflow, {}).rank.found_by, "Kubeflow");
  kubeflow.insert({{"PET_NPROC_PER_NODE", "2"}, {"PET_NNODES", "3"}, {"PET_NODE_RANK", "1"}});
  const auto pods = detect(kubeflow, {});
  EXPECT_EQ(pods.kind, Kind::kStartRanks);
  EXPECT_EQ(pods.num_local_ranks, 2);
  EXPECT_EQ(pods.rank.num_nodes, 3);
  EXPECT_THAT(error_of(kubeflow, {.devices = 4}),
              HasSubstr("devices: got 4, but PET_NPROC_PER_NODE is 2"));
}

TEST(Detect, OurOwnLauncherWinsOverAll) {
  auto environment = torchrun();
  environment.merge(srun(4));
  environment.insert({{"TUTTI_RUN_ID", "x"},
                      {"TUTTI_NUM_NODES", "2"},
                      {"TUTTI_RESTART_COUNT", "1"},
                      {"NODE_RANK", "1"},
                      {"TUTTI_STORE", "a:1"},
                      {"TUTTI_SECRET", "s"}});
  const auto found = detect(environment, {.devices = 4, .num_nodes = 2});
  EXPECT_EQ(found.rank.found_by, "tutti launch");
  EXPECT_EQ(places(found.rank), "5/8 1/4 1/2");
  EXPECT_EQ(found.rank.store_address, "a:1");
}

}  // namespace
}  // namespace tutti::launch
