// The cluster backends as a whole: every `env` that is not this machine alone.
//
// Rows of the env table in backend.cpp are {name, check_cluster, make_cluster} for each of
// cluster_envs(); which one is meant is in settings.env. A scheduler is added by one file and one
// line here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/wire/worker_env.h"

namespace tutti::parallel {

// slurm, pbs, sge, lsf, htcondor, moab, oar, ssh, kube.
const std::vector<std::string>& cluster_envs();
// Reads `parallel.options` (of `block`, for marks); adds every problem and every warning.
// REQUIRES: settings.env is one of cluster_envs().
void check_cluster(const ParallelSettings& settings, const config::Node& block,
                   config::Problems& problems);
// REQUIRES: check_cluster added no problem.
std::unique_ptr<Backend> make_cluster(const ParallelSettings& settings, const WorkerLaunch& launch,
                                      CommandRunner& runner);

// `processes` of a batch scheduler's job; 1 elsewhere.
int cluster_workers_per_job(const ParallelSettings& settings);

// The table of its options for the reference.
config::SchemaInfo cluster_options_info(const std::string& env);

}  // namespace tutti::parallel
