#include "tutti/parallel/backends/cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/parallel/backends/backends.h"
#include "tutti/parallel/backends/jobqueue.h"
#include "tutti/parallel/backends/kube.h"
#include "tutti/parallel/backends/ssh.h"

namespace tutti::parallel {
namespace {

struct Row {
  const char* name;
  SchedulerKind kind;
  std::unique_ptr<Dialect> (*make)();
};

constexpr Row kJobQueues[] = {
    {"slurm", SchedulerKind::kSlurm, make_slurm},
    {"pbs", SchedulerKind::kPbs, make_pbs},
    {"sge", SchedulerKind::kSge, make_sge},
    {"lsf", SchedulerKind::kLsf, make_lsf},
    {"htcondor", SchedulerKind::kHtcondor, make_htcondor},
    {"moab", SchedulerKind::kMoab, make_moab},
    {"oar", SchedulerKind::kOar, make_oar},
};

const Row* find_job_queue(const std::string& env) {
  for (const Row& row : kJobQueues)
    if (env == row.name) return &row;
  return nullptr;
}

}  // namespace

const std::vector<std::string>& cluster_envs() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Row& row : kJobQueues) out.emplace_back(row.name);
    out.emplace_back("ssh");
    out.emplace_back("kube");
    return out;
  }();
  return names;
}

void check_cluster(const ParallelSettings& settings, const config::Node& block,
                   config::Problems& problems) {
  const config::Node options = block["options"];
  if (settings.env == "ssh") return check_ssh(settings, options, problems);
  if (settings.env == "kube") return check_kube(settings, options, problems);
  const Row* row = find_job_queue(settings.env);
  if (row == nullptr) throw InternalError("check_cluster: not a cluster env: " + settings.env);
  const std::size_t before = problems.sorted().size();
  const JobQueueOptions parsed = parse_jobqueue_options(row->kind, options, problems);
  if (problems.sorted().size() != before) return;
  // A skip that names nothing is most likely a slip: the directive it meant is still there.
  const SubmissionText text =
      row->make()->text(parsed, WorkerLaunch{.command = {"tutti"}}, Submission{});
  for (const std::string& skip : text.unmatched_skips)
    problems.warn(options["job_directives_skip"],
                  fmt::format("'{}' names none of the generated directives", skip),
                  "give the exact name, as in `tutti parallel script`");
  // A job is had whole, and so are its workers.
  const int jobs = (settings.n_workers + parsed.processes - 1) / parsed.processes;
  if (block["n_workers"].defined() && jobs * parsed.processes != settings.n_workers)
    problems.warn(
        block["n_workers"],
        fmt::format("{} workers in jobs of {}: {} job{}, so that {} will start", settings.n_workers,
                    parsed.processes, jobs, jobs == 1 ? "" : "s", jobs * parsed.processes),
        "make it a multiple of options.processes");
}

config::SchemaInfo cluster_options_info(const std::string& env) {
  if (env == "ssh") return ssh_options_info();
  if (env == "kube") return kube_options_info();
  const Row* row = find_job_queue(env);
  if (row == nullptr) throw InternalError("cluster_options_info: not a cluster env: " + env);
  return jobqueue_schema(row->kind).info();
}

int cluster_workers_per_job(const ParallelSettings& settings) {
  const Row* row = find_job_queue(settings.env);
  config::Problems ignored;  // check_cluster has reported them
  return row == nullptr ? 1
                        : parse_jobqueue_options(row->kind, settings.options, ignored).processes;
}

std::unique_ptr<Backend> make_cluster(const ParallelSettings& settings, const WorkerLaunch& launch,
                                      CommandRunner& runner) {
  if (settings.env == "ssh") return make_ssh(settings, launch, runner);
  if (settings.env == "kube") return make_kube(settings, launch, runner);
  const Row* row = find_job_queue(settings.env);
  if (row == nullptr) throw InternalError("make_cluster: not a cluster env: " + settings.env);
  config::Problems ignored;  // check_cluster has reported them
  JobQueueOptions options = parse_jobqueue_options(row->kind, settings.options, ignored);
  if (!options.interface && !settings.interface.empty()) options.interface = settings.interface;
  return std::make_unique<JobQueueBackend>(row->make(), std::move(options), launch, runner);
}

}  // namespace tutti::parallel
