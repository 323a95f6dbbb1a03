#include "tutti/parallel/backends/kube.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/cluster.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {
namespace {

using namespace std::chrono_literals;

std::string text_at(const Json& node, const char* key) {
  return node.is_object() && node.contains(key) && node[key].is_string()
             ? node[key].get<std::string>()
             : "";
}

bool is_named_list(const Json& list) {
  return list.is_array() && !list.empty() &&
         std::all_of(list.begin(), list.end(),
                     [](const Json& entry) { return entry.is_object() && entry.contains("name"); });
}

}  // namespace

Json kube_merge(Json base, const Json& over) {
  if (base.is_object() && over.is_object()) {
    for (const auto& [key, value] : over.items())
      base[key] = base.contains(key) ? kube_merge(base[key], value) : value;
    return base;
  }
  if (is_named_list(base) && is_named_list(over)) {
    for (const Json& entry : over) {
      const auto same = std::find_if(base.begin(), base.end(), [&](const Json& mine) {
        return mine["name"] == entry["name"];
      });
      if (same == base.end())
        base.push_back(entry);
      else
        *same = kube_merge(*same, entry);
    }
    return base;
  }
  return over;
}

namespace {

// Pods and Jobs of one submission carry it, whether they are one Job or many.
constexpr const char* kSubmissionLabel = "tutti-submission";
// Where an old cluster's Jobs note which worker of the submission they are.
constexpr const char* kIndexAnnotation = "tutti-index";

Json one_job(const KubeSettings& settings, const WorkerLaunch& launch, const std::string& job_name,
             const std::string& submission, int first_worker_id, const Json& spec,
             const Json& more_env, const Json& more_annotations) {
  std::vector<std::string> words;
  for (const std::string& word : settings.worker_command) words.push_back(shell_quote(word));
  for (std::size_t i = settings.worker_command.empty() ? 0 : 1; i < launch.command.size(); ++i)
    words.push_back(shell_quote(launch.command[i]));
  const std::string id = fmt::format("$(({} + JOB_COMPLETION_INDEX))", first_worker_id);
  Json env = settings.env;
  for (const auto& [name, value] : launch.env) env.push_back({{"name", name}, {"value", value}});
  env.push_back({{"name", worker_env::kDeathTimeout},
                 {"value", fmt::format("{:g}", settings.death_timeout)}});
  if (settings.threads > 0)
    for (const char* name : {worker_env::kThreads, "OMP_NUM_THREADS"})
      env.push_back({{"name", name}, {"value", std::to_string(settings.threads)}});
  env.push_back({{"name", worker_env::kJobId},
                 {"valueFrom", {{"fieldRef", {{"fieldPath", "metadata.name"}}}}}});
  for (const Json& one : more_env) env.push_back(one);
  Json container = {
      {"name", "worker"},
      {"image", settings.image},
      {"command", {"/bin/sh", "-c", fmt::format("exec {} --id {}", join(words, " "), id)}},
      {"env", env}};
  if (!settings.resources.empty()) container["resources"] = settings.resources;
  if (!settings.volume_mounts.empty()) container["volumeMounts"] = settings.volume_mounts;
  Json pod_spec = {{"restartPolicy", "Never"},
                   {"terminationGracePeriodSeconds", 30},
                   {"containers", Json::array({container})}};
  if (!settings.volumes.empty()) pod_spec["volumes"] = settings.volumes;
  if (!settings.tolerations.empty()) pod_spec["tolerations"] = settings.tolerations;
  if (!settings.node_selector.empty()) pod_spec["nodeSelector"] = settings.node_selector;
  Json labels = settings.labels;
  labels["app.kubernetes.io/managed-by"] = "tutti";
  labels[kSubmissionLabel] = submission;
  Json pod_meta = {{"labels", labels}};
  Json annotations = settings.annotations;
  annotations.update(more_annotations);
  if (!annotations.empty()) pod_meta["annotations"] = annotations;
  Json meta = {{"name", job_name}, {"labels", labels}};
  if (!settings.name_space.empty()) meta["namespace"] = settings.name_space;
  Json job = {{"apiVersion", "batch/v1"}, {"kind", "Job"}, {"metadata", meta}, {"spec", spec}};
  job["spec"]["ttlSecondsAfterFinished"] = 3600;  // should the driver never come back to delete it
  job["spec"]["template"] = {{"metadata", pod_meta}, {"spec", pod_spec}};
  return kube_merge(job, settings.custom_spec);
}

}  // namespace

Json kube_manifest(const KubeSettings& settings, const WorkerLaunch& launch,
                   const std::string& name, int num_workers, int first_worker_id,
                   KubeVersion version) {
  if (version.has_indexed_jobs())
    return one_job(settings, launch, name, name, first_worker_id,
                   {{"completionMode", "Indexed"},
                    {"completions", num_workers},
                    {"parallelism", num_workers},
                    {"backoffLimitPerIndex", 0}},
                   Json::array(), Json::object());
  Json list = {{"apiVersion", "v1"}, {"kind", "List"}, {"items", Json::array()}};
  for (int i = 0; i < num_workers; ++i)
    list["items"].push_back(
        one_job(settings, launch, fmt::format("{}-{}", name, i), name, first_worker_id,
                {{"completions", 1}, {"parallelism", 1}, {"backoffLimit", 0}},
                Json::array({{{"name", "JOB_COMPLETION_INDEX"}, {"value", std::to_string(i)}}}),
                {{kIndexAnnotation, std::to_string(i)}}));
  return list;
}

Json kube_avoid(Json manifest, const std::vector<std::string>& nodes) {
  if (nodes.empty()) return manifest;
  const Json rule = {{"key", "kubernetes.io/hostname"}, {"operator", "NotIn"}, {"values", nodes}};
  const auto add = [&](Json& job) {
    Json& terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
                     ["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    if (!terms.is_array()) terms = Json::array({Json::object()});
    for (Json& term : terms) term["matchExpressions"].push_back(rule);  // terms are alternatives
  };
  if (manifest.value("kind", "") == "List")
    for (Json& job : manifest["items"]) add(job);
  else
    add(manifest);
  return manifest;
}

KubeVersion parse_kube_version(std::string_view out) {
  const Json answer = parse_json(out, "kubectl get --raw /version");
  // "20+" on some providers' clusters
  const auto number = [&](const char* key) { return std::atoi(text_at(answer, key).c_str()); };
  return {number("major"), number("minor")};
}

std::map<int, QueueState> parse_kube_pods(std::string_view out) {
  std::map<int, QueueState> states;
  std::map<int, std::string> newest;
  const Json answer = parse_json(out, "kubectl");
  if (!answer.contains("items")) return states;
  for (const Json& pod : answer["items"]) {
    const Json& meta = pod.value("metadata", Json::object());
    const Json annotations = meta.value("annotations", Json::object());
    std::string index_text = text_at(annotations, "batch.kubernetes.io/job-completion-index");
    if (index_text.empty()) index_text = text_at(annotations, kIndexAnnotation);
    if (index_text.empty() || index_text.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const int index = std::stoi(index_text);
    const std::string created = text_at(meta, "creationTimestamp");
    if (newest.contains(index) && newest[index] > created) continue;
    newest[index] = created;
    const Json status = pod.value("status", Json::object());
    const std::string phase = text_at(status, "phase");
    QueueState state;
    state.node = text_at(pod.value("spec", Json::object()), "nodeName");
    std::string why = text_at(status, "reason");  // "Evicted", "Preempting", "NodeLost"
    const std::string message = text_at(status, "message");
    if (phase == "Succeeded") {
      state.phase = JobPhase::kEnded;
    } else if (phase == "Failed") {
      state.phase = JobPhase::kFailed;
      state.preempted = !why.empty() || meta.contains("deletionTimestamp");
      state.reason = why.empty() ? "failed" : why + (message.empty() ? "" : ": " + message);
      for (const Json& container : status.value("containerStatuses", Json::array())) {
        const Json ended =
            container.value("state", Json::object()).value("terminated", Json::object());
        if (ended.contains("exitCode") && ended["exitCode"] != 0) {
          state.reason = text_at(ended, "reason") == "OOMKilled"
                             ? "OOMKilled: the container used more memory than its limit"
                             : "exit code " + ended["exitCode"].dump();
        }
      }
    } else if (phase == "Running") {
      state.phase = JobPhase::kRunning;
    } else {
      state.reason = "pending";
      for (const Json& condition : status.value("conditions", Json::array()))
        if (text_at(condition, "type") == "PodScheduled" && text_at(condition, "status") == "False")
          state.reason = text_at(condition, "reason") + ": " + text_at(condition, "message");
      for (const Json& container : status.value("containerStatuses", Json::array())) {
        const Json waiting =
            container.value("state", Json::object()).value("waiting", Json::object());
        const std::string reason = text_at(waiting, "reason");
        if (reason.empty()) continue;
        state.reason =
            reason +
            (text_at(waiting, "message").empty() ? "" : ": " + text_at(waiting, "message"));
        // These do not pass by waiting: the image or the spec is wrong.
        for (const char* word : {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
                                 "CreateContainerConfigError", "CreateContainerError"})
          if (reason == word) state.phase = JobPhase::kFailed;
      }
    }
    states[index] = state;
  }
  return states;
}

namespace {

class KubeBackend final : public Backend {
 public:
  KubeBackend(KubeSettings settings, WorkerLaunch launch, CommandRunner& runner)
      : settings_(std::move(settings)),
        launch_(std::move(launch)),
        runner_(runner),
        run_(fmt::format("{:06x}", std::random_device{}() & 0xffffff)) {}

  std::vector<JobStatus> submit(int n) override {
    // One that had no answer is handed in again under its name: the cluster takes it once.
    const bool again = unsure_.has_value();
    if (!again) {
      const std::string name = job_name(next_job_++);
      Json manifest = kube_manifest(settings_, launch_, name, n, next_worker_id_, version());
      unsure_ = Unsure{name, n, kube_avoid(std::move(manifest), avoid_).dump(2)};
      if (launch_.keys != nullptr) {
        std::vector<int> ids(static_cast<std::size_t>(n));
        std::iota(ids.begin(), ids.end(), next_worker_id_);
        launch_.keys->issue(ids);
      }
    }
    const std::string name = unsure_->name;
    n = unsure_->n;
    make_private_folder(launch_.run_folder / "scripts");
    write_file_atomic(launch_.run_folder / "scripts" / (name + ".json"), unsure_->manifest);
    Command command = kubectl({"create", "-f", "-"});
    command.stdin_text = unsure_->manifest;
    const CommandResult result = runner_.run(command);
    const bool there = again && result.err.find("AlreadyExists") != std::string::npos;
    if (!result.ok() && !there) {
      const std::string hint =
          "the manifest is " + (launch_.run_folder / "scripts" / (name + ".json")).string();
      if (no_answer(result)) throw SchedulerUnreachable(result.describe(), hint);
      unsure_.reset();
      throw SchedulerError(result.describe(), result.exit_code == 127 ? "install kubectl" : hint);
    }
    unsure_.reset();
    Group group{.name = name};
    std::vector<JobStatus> out;
    for (int i = 0; i < n; ++i) {
      JobStatus status{.job_id = fmt::format("{}/{}", name, i), .reason = "submitted"};
      status.log = launch_.run_folder / "logs" / fmt::format("worker-{}.log", next_worker_id_);
      status.worker_ids = {next_worker_id_++};
      group.pods.push_back(status);
      out.push_back(status);
    }
    groups_.push_back(std::move(group));
    return out;
  }

  std::string unanswered() const override { return unanswered_; }
  std::vector<JobStatus> poll() override {
    const auto now = Clock::system().steady();
    const bool ask = now - last_query_ >= 2s;
    if (ask) last_query_ = now;
    if (ask) unanswered_.clear();
    std::vector<JobStatus> out;
    for (Group& group : groups_) {
      const bool over = std::all_of(group.pods.begin(), group.pods.end(),
                                    [](const JobStatus& pod) { return is_over(pod); });
      if (over) continue;
      std::map<int, QueueState> states;
      if (ask) {
        const CommandResult result =
            runner_.run(kubectl({"get", "pods", "-l", label(group), "-o", "json"}));
        try {
          if (!result.ok()) throw SchedulerError(result.describe());
          states = parse_kube_pods(result.out);
        } catch (const Error& error) {  // keep what we knew
          unanswered_ = error.what();
          // Of an asynchronous run whoever looks tells so.
          if (!launch_.outlives_driver)
            log::warning("cannot ask for the state of our pods: {}", error.what());
        }
      }
      for (std::size_t i = 0; i < group.pods.size(); ++i) {
        JobStatus& pod = group.pods[i];
        if (is_over(pod)) continue;
        if (const auto found = states.find(static_cast<int>(i)); found != states.end()) {
          pod.phase = found->second.phase;
          pod.reason = found->second.reason;
          pod.preempted = found->second.preempted;
          if (!found->second.node.empty()) pod.node = found->second.node;
        }
        out.push_back(pod);
      }
    }
    return out;
  }

  bool cancel(const std::vector<std::string>& job_ids = {}) noexcept override try {
    bool all_gone = true;
    for (Group& group : groups_) {
      if (group.deleted) continue;
      if (job_ids.empty()) {
        const CommandResult result = delete_jobs(group.name);
        if (!result.ok())
          log::warning("Jobs {} may still be in the cluster ({})", group.name, result.describe());
        group.deleted = result.ok();
        all_gone = all_gone && group.deleted;
        continue;
      }
      for (std::size_t i = 0; i < group.pods.size(); ++i) {
        if (std::find(job_ids.begin(), job_ids.end(), group.pods[i].job_id) == job_ids.end())
          continue;
        const CommandResult result =
            runner_.run(version().has_indexed_jobs()
                            ? kubectl({"delete", "pods", "--wait=false", "-l",
                                       fmt::format("{},batch.kubernetes.io/job-completion-index={}",
                                                   label(group), i)})
                            : kubectl({"delete", "job", fmt::format("{}-{}", group.name, i),
                                       "--ignore-not-found", "--wait=false"}));
        if (result.ok()) continue;
        log::warning("{} may still be in the cluster ({})", group.pods[i].job_id,
                     result.describe());
        all_gone = false;
      }
    }
    if (job_ids.empty() && unsure_) {
      const CommandResult result = delete_jobs(unsure_->name);
      all_gone = all_gone && result.ok();
    }
    return all_gone;
  } catch (const std::exception& error) {
    log::warning("cannot delete Jobs: {}", error.what());
    return false;
  }

  void avoid(const std::vector<std::string>& nodes) override { avoid_ = nodes; }

  LeftOver cancel_left_over(const std::string&, const std::vector<std::string>& job_ids) override {
    LeftOver jobs;
    std::set<std::string> names;
    for (const std::string& id : job_ids) names.insert(id.substr(0, id.rfind('/')));
    jobs.found = names.size();
    for (const std::string& name : names) {
      const CommandResult result = delete_jobs(name);
      if (result.ok()) continue;
      log::warning("Jobs {} of an earlier driver may still be in the cluster ({})", name,
                   result.describe());
      jobs.left.push_back(name);
    }
    return jobs;
  }

  void adopt(const std::vector<JobStatus>& jobs) override {
    for (const JobStatus& job : jobs) {
      const auto slash = job.job_id.rfind('/');
      if (slash == std::string::npos) continue;
      const std::string name = job.job_id.substr(0, slash);
      const auto index = static_cast<std::size_t>(std::stoul(job.job_id.substr(slash + 1)));
      if (groups_.empty() || groups_.back().name != name) groups_.push_back({.name = name});
      auto& pods = groups_.back().pods;
      while (pods.size() <= index)
        pods.push_back({.job_id = fmt::format("{}/{}", name, pods.size()), .worker_ids = {-1}});
      pods[index] = job;
    }
  }

  std::vector<ScriptPreview> scripts(int n) const override {
    const Json manifest =
        kube_manifest(settings_, launch_, job_name(next_job_), n, next_worker_id_);
    return {{manifest.dump(2) + "\n", kubectl({"create", "-f", "-"}).describe()}};
  }

 private:
  struct Group {
    std::string name;
    std::vector<JobStatus> pods;
    bool deleted = false;
  };
  struct Unsure {
    std::string name;
    int n = 0;
    std::string manifest;
  };
  // The pods go with them.
  CommandResult delete_jobs(const std::string& name) {
    return runner_.run(
        kubectl({"delete", "jobs", "-l", fmt::format("{}={}", kSubmissionLabel, name),
                 "--ignore-not-found", "--wait=false"}));
  }
  static bool no_answer(const CommandResult& result) {
    if (result.timed_out) return true;
    for (const char* words : {"Unable to connect to the server", "TLS handshake timeout",
                              "i/o timeout", "connection refused", "request timed out"})
      if (result.err.find(words) != std::string::npos) return true;
    return false;
  }
  static bool is_over(const JobStatus& pod) {
    return pod.phase != JobPhase::kPending && pod.phase != JobPhase::kRunning;
  }
  static std::string label(const Group& group) {
    return fmt::format("{}={}", kSubmissionLabel, group.name);
  }
  // Of the API server. One that cannot be asked is taken for a new one: then `create` says why.
  KubeVersion version() {
    if (version_) return *version_;
    const CommandResult answer = runner_.run(kubectl({"get", "--raw", "/version"}));
    version_.emplace();
    try {
      if (answer.ok()) version_ = parse_kube_version(answer.out);
    } catch (const DataError& error) {
      log::warning("{}", error.what());
    }
    return *version_;
  }
  std::string job_name(int number) const {
    return fmt::format("{}-{}-{}", settings_.name, run_, number);
  }
  Command kubectl(std::vector<std::string> words) const {
    Command command{.argv = {"kubectl"}, .timeout = 60s};
    if (!settings_.context.empty()) command.argv.push_back("--context=" + settings_.context);
    if (!settings_.name_space.empty())
      command.argv.push_back("--namespace=" + settings_.name_space);
    command.argv.insert(command.argv.end(), words.begin(), words.end());
    return command;
  }

  const KubeSettings settings_;
  const WorkerLaunch launch_;
  CommandRunner& runner_;
  const std::string run_;  // tells the Jobs of two runs apart
  std::vector<Group> groups_;
  std::optional<Unsure> unsure_;  // a submission without an answer
  std::vector<std::string> avoid_;
  std::optional<KubeVersion> version_;
  Clock::TimePoint last_query_{};
  std::string unanswered_;
  int next_worker_id_ = launch_.first_worker_id;
  int next_job_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_kube(const ParallelSettings& settings, const WorkerLaunch& launch,
                                   CommandRunner& runner) {
  config::Problems ignored;  // check_kube has reported them
  return std::make_unique<KubeBackend>(parse_kube_options(settings.options, ignored), launch,
                                       runner);
}

}  // namespace tutti::parallel
