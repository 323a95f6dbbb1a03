// What must agree between blocks of a file, and what people put into the wrong one. FileChecker
// calls these.
#pragma once

#include "tutti/config/gpu_count.h"
#include "tutti/config/node.h"
#include "tutti/config/problem.h"

namespace tutti::config {

// dist_world_size = num_nodes x num_device; total_shards a multiple of it; trainer and the two
// top-level numbers agree.
void check_world_size(const Node& root, Problems& problems);

// env and n_workers of a parallel block; trainer settings under it; cluster-only options under env
// local; more workers than GPUs.
void check_parallel_mistakes(const Node& block, const GpuCounter& count_gpus, Problems& problems);

// The names `env` may have.
const std::vector<std::string>& parallel_envs();
// The one that was meant by another name: `slurm` for slurm_gpu; empty when none is near.
std::string closest_env(const std::string& name);

}  // namespace tutti::config
