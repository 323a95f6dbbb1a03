#include "tutti/parallel/backends/backend.h"

#include <algorithm>

#include "tutti/config/plugin.h"
#include "tutti/config/rules.h"
#include "tutti/config/schema.h"
#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/backends.h"
#include "tutti/parallel/backends/cluster.h"

namespace tutti::parallel {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

// item_timeout may be null, a number or "00:05:00"; the struct wants plain seconds.
struct Block {
  std::string env = "local";
  int n_workers = 1;
  Node options;
  int max_retries = 3;
  std::string on_error = "stop";
  std::optional<config::Duration> item_timeout;
  bool resume = true;
  bool async = false;
  std::string interface;
  std::vector<std::string> plugins;
};

Schema<Block> block_schema() {
  Schema<Block> s("parallel", "Who runs the items of a stage.");
  s.field("env", &Block::env, "who starts the workers");
  s.field("n_workers", &Block::n_workers, "worker processes (local_gpu: GPUs, kube: pods)",
          {.min = 1});
  s.field("options", &Block::options, "options of the backend");
  s.field("max_retries", &Block::max_retries, "worker deaths an item may cause on its own",
          {.min = 0});
  s.field("on_error", &Block::on_error, "what a failing item does to the run",
          {.one_of = {"stop", "skip"}});
  s.field("item_timeout", &Block::item_timeout, "an item that takes longer has failed",
          {.min = 0, .unit = "seconds"});
  s.field("resume", &Block::resume, "go on where the folder's journal ends");
  s.field("async", &Block::async, "submit and leave; workers write journals themselves");
  s.field("interface", &Block::interface, "network interface workers use to reach the driver");
  s.field("plugins", &Block::plugins, "shared libraries that every worker loads");
  const std::string trainer = "that is training parallelism: put it under trainer:";
  for (const char* key : {"devices", "num_nodes", "strategy", "accelerator", "precision"})
    s.elsewhere(key, trainer);
  const std::string options = "a backend option: put it under parallel.options";
  for (const char* key : {"nj", "num_workers", "num_jobs", "n_jobs", "workers"})
    s.elsewhere(key, "is called n_workers here");
  for (const char* key : {"backend", "type", "cluster", "scheduler"})
    s.elsewhere(key, "is called env here");
  for (const char* key :
       {"queue", "partition", "gres", "account", "cores", "memory", "walltime", "processes",
        "threads_per_worker", "job_extra_directives", "memory_limit"})
    s.elsewhere(key, options);
  return s;
}

}  // namespace

const std::vector<BackendRow>& backend_rows() {
  static const std::vector<BackendRow> rows = {
      {"local", check_local, make_local, local_options_info},
      {"local_gpu", check_local_gpu, make_local_gpu, local_gpu_options_info},
      {"slurm", check_cluster, make_cluster, cluster_options_info},
      {"pbs", check_cluster, make_cluster, cluster_options_info},
      {"sge", check_cluster, make_cluster, cluster_options_info},
      {"lsf", check_cluster, make_cluster, cluster_options_info},
      {"htcondor", check_cluster, make_cluster, cluster_options_info},
      {"moab", check_cluster, make_cluster, cluster_options_info},
      {"oar", check_cluster, make_cluster, cluster_options_info},
      {"ssh", check_cluster, make_cluster, cluster_options_info},
      {"kube", check_cluster, make_cluster, cluster_options_info},
  };
  return rows;
}

const std::vector<std::string>& options_without_meaning() {
  static const std::vector<std::string> names = {"dashboard_address",
                                                 "worker_dashboard_address",
                                                 "silence_logs",
                                                 "asynchronous",
                                                 "loop",
                                                 "security",
                                                 "protocol",
                                                 "scheduler_port",
                                                 "scheduler_kwargs",
                                                 "scheduler_sync_interval",
                                                 "blocked_handlers",
                                                 "service_kwargs",
                                                 "services",
                                                 "worker_services",
                                                 "worker_class",
                                                 "nanny",
                                                 "pre_import",
                                                 "scheduler_cls",
                                                 "job_cls"};
  return names;
}

Node drop_options_without_meaning(const Node& options, Problems& problems) {
  if (!options.is_map()) return options;
  auto kept = std::make_shared<config::Value>(*options.value());
  const auto& names = options_without_meaning();
  std::erase_if(kept->map, [&](const auto& entry) {
    if (std::find(names.begin(), names.end(), entry.first) == names.end()) return false;
    problems.warn(options[entry.first],
                  "'" + entry.first + "' belongs to Dask and has no meaning here", "remove it");
    return true;
  });
  return Node(std::move(kept), options.path());
}

ParallelSettings parse_parallel(const Node& block, Problems& problems) {
  const Block parsed = block_schema().parse(block, problems);
  ParallelSettings settings;
  settings.env = parsed.env;
  settings.n_workers = parsed.n_workers;
  settings.options = parsed.options;
  settings.max_retries = parsed.max_retries;
  settings.on_error = parsed.on_error;
  settings.item_timeout_s = parsed.item_timeout ? parsed.item_timeout->seconds : 0;
  settings.resume = parsed.resume;
  settings.async = parsed.async;
  settings.interface = parsed.interface;
  if (!parsed.plugins.empty())
    for (const Node& plugin : block["plugins"].elements())
      settings.plugins.push_back(config::plugin_path(plugin));

  std::vector<std::string> names;
  for (const BackendRow& row : backend_rows()) {
    names.emplace_back(row.env);
    if (settings.env != row.env) continue;
    row.check(settings, block, problems);
    return settings;
  }
  const std::string guess = config::closest_env(settings.env);
  problems.add(block["env"], "got '" + settings.env + "', expected one of " + join(names, ", "),
               guess.empty() ? "" : "did you mean '" + guess + "'?");
  return settings;
}

Json to_json(const ParallelSettings& settings) {
  Json json;
  json["env"] = settings.env;
  json["n_workers"] = settings.n_workers;
  json["options"] = config::to_json(settings.options);
  json["max_retries"] = settings.max_retries;
  json["on_error"] = settings.on_error;
  json["interface"] = settings.interface;
  json["plugins"] = settings.plugins;
  return json;
}

ParallelSettings parallel_settings_from(const Json& json) {
  ParallelSettings settings;
  json.at("env").get_to(settings.env);
  json.at("n_workers").get_to(settings.n_workers);
  settings.options = config::from_json(json.at("options"));
  json.at("max_retries").get_to(settings.max_retries);
  json.at("on_error").get_to(settings.on_error);
  json.at("interface").get_to(settings.interface);
  json.at("plugins").get_to(settings.plugins);
  return settings;
}

std::vector<config::SchemaInfo> parallel_reference() {
  std::vector<config::SchemaInfo> tables = {block_schema().info()};
  for (const BackendRow& row : backend_rows()) {
    tables.push_back(row.options(row.env));
    tables.back().name = "parallel.options of env: " + std::string(row.env);
  }
  return tables;
}

int workers_per_job(const ParallelSettings& settings) { return cluster_workers_per_job(settings); }

std::unique_ptr<Backend> make_backend(const ParallelSettings& settings, const WorkerLaunch& launch,
                                      CommandRunner& runner) {
  WorkerLaunch full = launch;
  // Workers share processors, and threads that wait by spinning take them from the others. It must
  // be there before the worker starts: OpenMP reads it when its library is loaded.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) full.env.try_emplace("OMP_WAIT_POLICY", "passive");
  // In a container our files may belong to another number than the one the worker runs under.
  if (settings.env == "kube")
    full.env.try_emplace(kTrustedUserVariable, std::to_string(::geteuid()));
  for (const BackendRow& row : backend_rows())
    if (settings.env == row.env) return row.create(settings, full, runner);
  throw InternalError("make_backend: unknown env '" + settings.env + "' got past parse_parallel");
}

}  // namespace tutti::parallel
