// env: kube. Workers as pods of an indexed Job, through kubectl.
//
//   parallel:
//     env: kube
//     n_workers: 8
//     options:
//       image: registry.example/tutti:1
//       namespace: speech
//       resources: {limits: {cpu: "2", memory: 8Gi, nvidia.com/gpu: 1}}
//       volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
//       volume_mounts: [{name: data, mountPath: /data}]
//
// The run folder must lie on a volume the pods mount at the same path: the workers find the
// driver's address and their key there. A failed pod is not started again by Kubernetes
// (backoffLimitPerIndex: 0, Kubernetes 1.29 or later; older clusters get a Job per worker):
// replacing workers is the driver's business, and only one may do it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

struct KubeSettings {
  std::string name = "tutti";  // Jobs are NAME-<run>-<number>
  std::string name_space;      // empty: kubectl's current one
  std::string context;         // empty: kubectl's current one
  std::string image;
  Json resources = Json::object();
  Json env = Json::array();
  Json labels = Json::object();
  Json annotations = Json::object();
  Json tolerations = Json::array();
  Json node_selector = Json::object();
  Json volumes = Json::array();
  Json volume_mounts = Json::array();
  Json custom_spec = Json::object();  // merged over the whole Job
  std::vector<std::string> worker_command;
  int threads = 0;
  double death_timeout = 60;
};

KubeSettings parse_kube_options(const config::Node& options, config::Problems& problems);
// Of the API server.
struct KubeVersion {
  int major = 1;
  int minor = 29;
  // Indexed Jobs are older, but only with backoffLimitPerIndex does one dead worker not end all.
  bool has_indexed_jobs() const { return major > 1 || minor >= 29; }
};
// kubectl get --raw /version. Throws DataError.
KubeVersion parse_kube_version(std::string_view out);

// The Job of `num_workers` pods whose workers are first_worker_id, first_worker_id + 1, ...; for an
// old API server a List of Jobs of one pod each.
Json kube_manifest(const KubeSettings& settings, const WorkerLaunch& launch,
                   const std::string& name, int num_workers, int first_worker_id,
                   KubeVersion version = {});
// The same with a rule that keeps the pods away from `nodes`.
Json kube_avoid(Json manifest, const std::vector<std::string>& nodes);
// Maps merge deeply; lists of maps with `name` merge by name; anything else replaces.
Json kube_merge(Json base, const Json& over);
// Answer of `kubectl get pods -o json`: state by completion index, the newest pod of an index
// counts.
std::map<int, QueueState> parse_kube_pods(std::string_view out);

void check_kube(const ParallelSettings& settings, const config::Node& options,
                config::Problems& problems);
std::unique_ptr<Backend> make_kube(const ParallelSettings& settings, const WorkerLaunch& launch,
                                   CommandRunner& runner);

}  // namespace tutti::parallel
