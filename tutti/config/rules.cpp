#include "tutti/config/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tutti/config/recipe_defaults.h"
#include "tutti/config/schema.h"
#include "tutti/config/schemas/types.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

std::optional<std::int64_t> positive(const Node& node) {
  std::int64_t value = 0;
  std::string expected;
  if (!node.is_scalar() || !read(node, value, expected) || value < 1) return {};
  return value;
}

std::optional<std::int64_t> trainer_devices(const Node& trainer) {
  Devices devices;
  std::string expected;
  if (trainer["devices"].is_null() || !read(trainer["devices"], devices, expected)) return {};
  const auto number = devices.number();
  return number ? std::optional<std::int64_t>(*number) : std::nullopt;
}

// A number that two keys may give; the trainer's own is the one that counts.
struct Count {
  std::int64_t value = 1;
  std::string name;
};

std::optional<Count> count_of(const std::optional<std::int64_t>& top, const char* top_name,
                              const std::optional<std::int64_t>& trainer,
                              const char* trainer_name) {
  if (trainer && top && *trainer != *top) return Count{*trainer, trainer_name};
  if (top) return Count{*top, top_name};
  if (trainer) return Count{*trainer, trainer_name};
  return {};
}

// The trainer's own number counts; the top-level one is what ${...} elsewhere would give, so it is the one to mend.
void check_agreement(const Node& node, const std::optional<std::int64_t>& got, const Node& top,
                     Problems& problems) {
  const auto expected = positive(top);
  if (!got || !expected || *got == *expected || is_recipe_default(top)) return;
  problems.warn(node, fmt::format("{} is used, while {} is {}", *got, top.path(), *expected),
                fmt::format("set {}: {}", top.path(), *got));
}

const std::vector<std::string>& cluster_only_options() {
  static const std::vector<std::string> kNames = {"queue",
                                                  "account",
                                                  "project",
                                                  "walltime",
                                                  "cores",
                                                  "memory",
                                                  "job_extra",
                                                  "job_extra_directives",
                                                  "job_script_prologue",
                                                  "job_script_epilogue",
                                                  "job_directives_skip",
                                                  "job_name",
                                                  "job_cpu",
                                                  "job_mem",
                                                  "resource_spec",
                                                  "shebang",
                                                  "log_directory",
                                                  "env_extra",
                                                  "header_skip",
                                                  "ncpus",
                                                  "mem",
                                                  "lsf_units",
                                                  "disk",
                                                  "submit_command_extra",
                                                  "cancel_command_extra",
                                                  "memory_per_core_property_name"};
  return kNames;
}

bool is_trainer_setting(const std::string& key) {
  static const std::vector<std::string> kNames = {"strategy",
                                                  "devices",
                                                  "num_nodes",
                                                  "accelerator",
                                                  "precision",
                                                  "find_unused_parameters",
                                                  "gradient_clip_val",
                                                  "accumulate_grad_batches",
                                                  "sync_batchnorm",
                                                  "ddp",
                                                  "fsdp",
                                                  "num_device",
                                                  "process_group_backend",
                                                  "ddp_find_unused_parameters",
                                                  "bucket_cap_mb",
                                                  "sharding_strategy",
                                                  "use_distributed_sampler",
                                                  "max_epochs",
                                                  "dist_world_size",
                                                  "total_shards"};
  return std::find(kNames.begin(), kNames.end(), key) != kNames.end();
}

std::string trainer_place(const std::string& key) {
  if (key == "dist_world_size" || key == "total_shards")
    return "move it to dataloader.train." + key;
  for (const char* name : {"devices", "num_nodes", "accelerator", "precision", "gradient_clip_val",
                           "accumulate_grad_batches", "max_epochs"})
    if (key == name) return "move it to trainer." + key;
  if (key == "num_device")
    return "move it to the top level, and write trainer.devices: ${num_device}";
  return "move it to trainer.strategy";
}

// Only the driver's own machine: no scheduler in between.
bool is_local(const std::string& env) { return env == "local" || env == "local_gpu"; }

void check_options(const Node& options, const std::string& env, Problems& problems) {
  for (const auto& [key, value] : options.items()) {
    const Mark mark = options.key_mark(key);
    if (is_trainer_setting(key)) {
      problems.add({mark, value.path(), "belongs to training, not to the parallel block",
                    trainer_place(key), true});
      continue;
    }
    const auto& cluster = cluster_only_options();
    if (is_local(env) && std::find(cluster.begin(), cluster.end(), key) != cluster.end())
      problems.add({mark, value.path(),
                    fmt::format("an option of batch schedulers, got under env: {}", env),
                    "remove it, or set env to slurm, pbs, sge, lsf, htcondor, moab or oar", true});
  }
}

void check_gpus(const Node& block, const GpuCounter& count_gpus, Problems& problems) {
  const auto workers = positive(block["n_workers"]);
  if (!workers) return;
  const Node list = block["options"]["CUDA_VISIBLE_DEVICES"];
  int gpus = 0;
  if (list.is_list())
    gpus = static_cast<int>(list.size());
  else if (list.is_scalar())
    gpus = count_devices_in_list(list.raw());
  else
    gpus = count_gpus();
  if (*workers <= gpus) return;
  // Files are often checked on a login node without GPUs; the run itself refuses to start there.
  if (gpus == 0)
    problems.warn(block["n_workers"],
                  fmt::format("got {}, and no GPU is visible on this machine", *workers),
                  "check it where it will run, or use env: local");
  else
    problems.add(
        block["n_workers"],
        fmt::format("got {}, expected at most the number of visible GPUs = {}", *workers, gpus),
        fmt::format("set n_workers: {}", gpus));
}

void check_loader_rules(const Node& loader, const std::optional<Count>& nodes,
                        const std::optional<Count>& devices, Problems& problems) {
  const Node world_node = loader["dist_world_size"];
  const auto given_world = positive(world_node);
  std::optional<std::int64_t> world;
  if (devices) {
    const Count node_count = nodes.value_or(Count{1, "num_nodes"});
    std::int64_t product = 0;
    if (__builtin_mul_overflow(node_count.value, devices->value, &product)) return;
    world = product;
    if (given_world && *given_world != product) {
      const bool by_top = node_count.name == "num_nodes" && devices->name == "num_device";
      problems.add(
          world_node,
          fmt::format("got {}, expected {} x {} = {} x {} = {}", *given_world, node_count.name,
                      devices->name, node_count.value, devices->value, product),
          by_top && nodes ? "set dist_world_size: ${num_nodes * num_device}"
                          : fmt::format("set dist_world_size: {}", product));
    }
  }
  const auto shards = positive(loader["total_shards"]);
  const auto divisor = given_world ? given_world : world;
  if (!shards || !divisor || *shards % *divisor == 0) return;
  const std::int64_t next = (*shards / *divisor + 1) * *divisor;
  problems.add(loader["total_shards"],
               fmt::format("got {}, expected a multiple of {} = {}", *shards,
                           given_world ? "dist_world_size" : "the number of ranks", *divisor),
               fmt::format("set total_shards: {} (the next multiple)", next));
}

}  // namespace

void check_world_size(const Node& root, Problems& problems) {
  const Node trainer = root["trainer"];
  const auto devices_there = trainer_devices(trainer);
  const auto nodes_there = positive(trainer["num_nodes"]);
  check_agreement(trainer["devices"], devices_there, root["num_device"], problems);
  check_agreement(trainer["num_nodes"], nodes_there, root["num_nodes"], problems);
  const auto nodes =
      count_of(positive(root["num_nodes"]), "num_nodes", nodes_there, "trainer.num_nodes");
  const auto devices =
      count_of(positive(root["num_device"]), "num_device", devices_there, "trainer.devices");
  for (const char* mode : {"train", "valid"})
    check_loader_rules(root["dataloader"][mode], nodes, devices, problems);
}

const std::vector<std::string>& parallel_envs() {
  static const std::vector<std::string> kNames = {
      "local", "local_gpu", "slurm", "pbs", "sge", "lsf", "htcondor", "moab", "oar", "ssh", "kube"};
  return kNames;
}

std::string closest_env(const std::string& name) {
  std::string guess = closest_match(name, parallel_envs());
  if (!guess.empty()) return guess;
  for (const std::string& env : parallel_envs())
    if (name.starts_with(env) && env.size() > guess.size()) guess = env;
  return guess;
}

void check_parallel_mistakes(const Node& block, const GpuCounter& count_gpus, Problems& problems) {
  if (!block.is_map()) return;
  for (const auto& [key, value] : block.items()) {
    if (is_trainer_setting(key))
      problems.add({block.key_mark(key), value.path(),
                    "belongs to training, not to the parallel block", trainer_place(key), true});
  }
  const Node env = block["env"];
  const std::string name = env.is_scalar() ? env.raw() : "local";
  const auto& known = parallel_envs();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string guess = closest_env(name);
    problems.add(env, fmt::format("got '{}', expected one of {}", name, join(known, ", ")),
                 guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
  }
  if (block["options"].is_map()) check_options(block["options"], name, problems);
  if (name == "local_gpu") check_gpus(block, count_gpus, problems);
}

}  // namespace tutti::config
