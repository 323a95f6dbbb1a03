// The options of env kube: the names of Dask's two KubeClusters onto a Job.
#include <fmt/format.h>

#include <filesystem>

#include "tutti/config/load.h"
#include "tutti/config/schema.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/backends.h"
#include "tutti/parallel/backends/kube.h"

namespace tutti::parallel {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

struct Raw {
  std::optional<std::string> name, name_space, context, image;
  Node resources, env, worker_command, custom_cluster_spec, pod_template, labels, annotations,
      tolerations, node_selector, volumes, volume_mounts;
  Node extra_container_config, extra_pod_config;
  std::optional<std::string> memory_limit, memory_request, cpu_limit, cpu_request;
  std::optional<int> gpu_limit, threads_per_worker;
  double death_timeout = 60;
  Node idle_timeout, resource_timeout, create_mode, shutdown_on_close, scheduler_service_type,
      scheduler_forward_port, port_forward_cluster_ip, jupyter, loop, asynchronous, quiet, auth,
      deploy_mode, interface, protocol, dashboard_address, security, scheduler_pod_template,
      scheduler_service_wait_timeout, scheduler_service_name_resolution_retries,
      apply_default_affinity;
};

Schema<Raw> kube_schema() {
  Schema<Raw> s("kube", "Workers as pods of a Kubernetes Job.");
  s.field("name", &Raw::name, "beginning of the Job's name: lower case letters, digits and dashes");
  s.field("namespace", &Raw::name_space, "namespace; default: kubectl's current one");
  s.field("context", &Raw::context, "kubectl context; default: the current one");
  s.field("image", &Raw::image, "container image with the tutti program");
  s.field("resources", &Raw::resources, "limits and requests of a worker");
  s.field("env", &Raw::env, "environment: a map, or a list as in a pod");
  s.field("worker_command", &Raw::worker_command,
          "program in the image instead of the path of this tutti");
  s.field("custom_cluster_spec", &Raw::custom_cluster_spec,
          "a Job (or part of one) merged over ours: a map, or a YAML file");
  s.field("pod_template", &Raw::pod_template,
          "a pod (or part of one) merged over ours: a map, or a YAML file");
  s.field("labels", &Raw::labels, "labels of Job and pods");
  s.field("annotations", &Raw::annotations, "annotations of the pods");
  s.field("tolerations", &Raw::tolerations, "tolerations, as in a pod");
  s.field("node_selector", &Raw::node_selector, "node selector, as in a pod");
  s.field("volumes", &Raw::volumes, "volumes, as in a pod; one must hold the run folder");
  s.field("volume_mounts", &Raw::volume_mounts, "mounts, as in a container");
  s.field("extra_container_config", &Raw::extra_container_config, "merged over the container");
  s.field("extra_pod_config", &Raw::extra_pod_config, "merged over the pod's spec");
  s.field("memory_limit", &Raw::memory_limit, "as in resources.limits.memory");
  s.field("memory_request", &Raw::memory_request, "as in resources.requests.memory");
  s.field("cpu_limit", &Raw::cpu_limit, "as in resources.limits.cpu");
  s.field("cpu_request", &Raw::cpu_request, "as in resources.requests.cpu");
  s.field("gpu_limit", &Raw::gpu_limit, "as in resources.limits.nvidia.com/gpu", {.min = 0});
  s.field("threads_per_worker", &Raw::threads_per_worker, "threads of a worker", {.min = 1});
  s.field("death_timeout", &Raw::death_timeout, "a worker without a driver leaves after this",
          {.min = 0, .unit = "seconds"});
  for (const auto& [key, member] : std::initializer_list<std::pair<const char*, Node Raw::*>>{
           {"idle_timeout", &Raw::idle_timeout},
           {"resource_timeout", &Raw::resource_timeout},
           {"create_mode", &Raw::create_mode},
           {"shutdown_on_close", &Raw::shutdown_on_close},
           {"scheduler_service_type", &Raw::scheduler_service_type},
           {"scheduler_forward_port", &Raw::scheduler_forward_port},
           {"port_forward_cluster_ip", &Raw::port_forward_cluster_ip},
           {"jupyter", &Raw::jupyter},
           {"loop", &Raw::loop},
           {"asynchronous", &Raw::asynchronous},
           {"quiet", &Raw::quiet},
           {"auth", &Raw::auth},
           {"deploy_mode", &Raw::deploy_mode},
           {"interface", &Raw::interface},
           {"protocol", &Raw::protocol},
           {"dashboard_address", &Raw::dashboard_address},
           {"security", &Raw::security},
           {"scheduler_pod_template", &Raw::scheduler_pod_template},
           {"scheduler_service_wait_timeout", &Raw::scheduler_service_wait_timeout},
           {"scheduler_service_name_resolution_retries",
            &Raw::scheduler_service_name_resolution_retries},
           {"apply_default_affinity", &Raw::apply_default_affinity}})
    s.field(key, member, "of Dask; accepted, has no effect");
  s.elsewhere("n_workers", "belongs one level up: parallel.n_workers");
  for (const char* key :
       {"queue", "account", "walltime", "cores", "memory", "processes", "job_extra_directives"})
    s.elsewhere(key, "is an option of batch schedulers; for kube set resources");
  return s;
}

// A map, or the name of a YAML file that holds one.
Json tree(const Node& node, Problems& problems) {
  if (node.is_null()) return Json::object();
  if (node.is_map()) return to_json(node);
  if (node.is_scalar()) {
    try {
      return to_json(config::load({.files = {node.raw()}, .overrides = {}}));
    } catch (const Error& error) {
      problems.add(node, error.what());
      return Json::object();
    }
  }
  problems.add(node,
               "got " + node.describe_value() + ", expected a map or the name of a YAML file");
  return Json::object();
}

Json list(const Node& node, Problems& problems) {
  if (node.is_null()) return Json::array();
  if (!node.is_list()) problems.add(node, "got " + node.describe_value() + ", expected a list");
  return node.is_list() ? to_json(node) : Json::array();
}

// Kubernetes wants text for environment and labels, whatever YAML makes of `1` or `true`.
Json text_map(const Node& node, Problems& problems) {
  Json out = Json::object();
  if (node.is_null()) return out;
  if (!node.is_map()) problems.add(node, "got " + node.describe_value() + ", expected a map");
  for (const auto& [key, value] : node.items()) out[key] = value.is_null() ? "" : value.raw();
  return out;
}

void check_resources(const Node& node, Problems& problems) {
  if (node.is_null()) return;
  config::check_unknown_keys(node, {"limits", "requests"}, {}, problems);
  for (const auto& [key, value] : node.items())
    if (!value.is_map())
      problems.add(value, "got " + value.describe_value() +
                              ", expected a map such as {cpu: 2, memory: 4Gi}");
}

bool is_dns_label(const std::string& name, std::size_t most) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  if (name.empty() || name.size() > most || name.front() == '-' || name.back() == '-') return false;
  for (const char c : name)
    if (!good(c)) return false;
  return true;
}

}  // namespace

KubeSettings parse_kube_options(const Node& options, Problems& problems) {
  const Raw raw = kube_schema().parse(options, problems);
  KubeSettings out;
  for (const Node* node : {&raw.idle_timeout,
                           &raw.resource_timeout,
                           &raw.create_mode,
                           &raw.shutdown_on_close,
                           &raw.scheduler_service_type,
                           &raw.scheduler_forward_port,
                           &raw.port_forward_cluster_ip,
                           &raw.jupyter,
                           &raw.loop,
                           &raw.asynchronous,
                           &raw.quiet,
                           &raw.auth,
                           &raw.deploy_mode,
                           &raw.interface,
                           &raw.protocol,
                           &raw.dashboard_address,
                           &raw.security,
                           &raw.scheduler_pod_template,
                           &raw.scheduler_service_wait_timeout,
                           &raw.scheduler_service_name_resolution_retries,
                           &raw.apply_default_affinity})
    if (!node->is_null())
      problems.warn(*node, "has no effect: there is no Dask scheduler in the cluster", "remove it");
  out.name = raw.name.value_or("tutti");
  if (!is_dns_label(out.name, 40))
    problems.add(
        options["name"],
        fmt::format("got '{}', expected up to 40 lower case letters, digits and dashes", out.name));
  out.name_space = raw.name_space.value_or("");
  out.context = raw.context.value_or("");
  out.image = raw.image.value_or("");
  check_resources(raw.resources, problems);
  // A quantity is text to the API's schema, whatever YAML makes of `cpu: 2`.
  for (const auto& [group, amounts] : raw.resources.items())
    if (amounts.is_map()) out.resources[group] = text_map(amounts, problems);
  const auto quantity = [&](const char* group, const char* key,
                            const std::optional<std::string>& value) {
    if (value) out.resources[group][key] = *value;
  };
  quantity("limits", "memory", raw.memory_limit);
  quantity("requests", "memory", raw.memory_request);
  quantity("limits", "cpu", raw.cpu_limit);
  quantity("requests", "cpu", raw.cpu_request);
  if (raw.gpu_limit) out.resources["limits"]["nvidia.com/gpu"] = std::to_string(*raw.gpu_limit);
  if (raw.env.is_list()) {
    out.env = to_json(raw.env);
  } else {
    const Json env = text_map(raw.env, problems);
    for (const auto& [key, value] : env.items())
      out.env.push_back({{"name", key}, {"value", value}});
  }
  out.labels = text_map(raw.labels, problems);
  out.annotations = text_map(raw.annotations, problems);
  out.node_selector = text_map(raw.node_selector, problems);
  out.tolerations = list(raw.tolerations, problems);
  out.volumes = list(raw.volumes, problems);
  out.volume_mounts = list(raw.volume_mounts, problems);
  if (raw.worker_command.is_list())
    out.worker_command = raw.worker_command.as<std::vector<std::string>>();
  else if (raw.worker_command.is_scalar())
    out.worker_command = split_words(raw.worker_command.raw());
  if (!out.worker_command.empty() && out.worker_command[0].starts_with("dask")) {
    problems.warn(raw.worker_command, "has no effect: it names a program of Dask's",
                  "give the path of tutti in the image");
    out.worker_command.clear();
  }
  out.threads = raw.threads_per_worker.value_or(0);
  out.death_timeout = raw.death_timeout;

  Json container = tree(raw.extra_container_config, problems);
  Json pod = tree(raw.pod_template, problems);
  Json pod_spec = tree(raw.extra_pod_config, problems);
  pod.erase("apiVersion");
  pod.erase("kind");
  if (!container.empty()) {
    container["name"] = "worker";
    pod_spec["containers"] = Json::array({container});
  }
  if (!pod_spec.empty()) pod = kube_merge(pod, {{"spec", pod_spec}});
  if (!pod.empty()) out.custom_spec = {{"spec", {{"template", pod}}}};
  out.custom_spec = kube_merge(out.custom_spec, tree(raw.custom_cluster_spec, problems));
  if (out.custom_spec.contains("kind") && out.custom_spec["kind"] != "Job")
    problems.add(
        options["custom_cluster_spec"],
        fmt::format("got kind {}, expected a Job or part of one", out.custom_spec["kind"].dump()),
        "leave out kind, or give a Job");
  const bool image_elsewhere = out.custom_spec.dump().find("\"image\"") != std::string::npos;
  if (out.image.empty() && !image_elsewhere)
    problems.add(options, "key 'image' is missing",
                 "add image: the container image that holds tutti");
  if (out.volume_mounts.empty() && out.custom_spec.dump().find("volumeMounts") == std::string::npos)
    problems.warn(options, "no volume is mounted, so the pods cannot see the run folder",
                  "add volumes and volume_mounts");
  return out;
}

void check_kube(const ParallelSettings&, const Node& options, Problems& problems) {
  parse_kube_options(options, problems);
}

config::SchemaInfo kube_options_info() { return kube_schema().info(); }

}  // namespace tutti::parallel
