// env: local. Worker processes (or, with `processes: false`, threads) on this machine.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/threads.h"
#include "tutti/core/units.h"
#include "tutti/parallel/backends/local.h"
#include "tutti/parallel/wire/secrets.h"
#include "tutti/parallel/wire/worker_env.h"

namespace tutti::parallel {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

std::uint64_t machine_memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
}

// "auto" and null: no limit (Dask's auto kills workers that merely use their share of memory);
// a number up to 1 is a share of the machine.
void check_memory_limit(const Node& node, Problems& problems) {
  if (node.is_null()) return;
  if (node.is_scalar() && node.raw() == "auto") return;
  double share = 0;
  std::string expected;
  constexpr double kBytes = 1 << 20;  // who counts bytes has more of them than that
  const bool is_number = config::read(node, share, expected);
  if (is_number && share > 1 && share < kBytes)
    return problems.add(
        node,
        "got " + node.describe_value() +
            ", expected a size with its unit (\"4GB\"), or a share of memory up to 1",
        fmt::format("memory_limit: {}GB", node.raw()));
  if (is_number && share >= 0) return;
  config::Bytes bytes;
  if (!config::read(node, bytes, expected))
    problems.add(node, "got " + node.describe_value() +
                           ", expected a size (\"4GB\"), a share of memory up to 1, auto or null");
}

}  // namespace

std::uint64_t memory_limit_bytes(const Node& node) {
  if (node.is_null() || node.raw() == "auto") return 0;
  double number = 0;
  std::string expected;
  if (config::read(node, number, expected))
    return static_cast<std::uint64_t>(number <= 1 ? number * static_cast<double>(machine_memory())
                                                  : number);
  return node.as<config::Bytes>().count;
}

Schema<LocalOptions> local_schema(const std::string& env) {
  Schema<LocalOptions> s(env + " options", "Workers on this machine.");
  s.field("threads_per_worker", &LocalOptions::threads_per_worker,
          "threads the libraries of one worker may use (OMP, BLAS); null: OMP_NUM_THREADS where it "
          "is set, else the CPUs divided by n_workers",
          {.min = 1});
  s.field("processes", &LocalOptions::processes, "false: workers are threads of the driver");
  s.field("memory_limit", &LocalOptions::memory_limit,
          "memory of one worker; above it the worker is replaced and the item named");
  s.field("local_directory", &LocalOptions::local_directory,
          "working folder of the workers' temporary files");
  s.field("env", &LocalOptions::env, "environment variables of the workers");
  s.field("niceness", &LocalOptions::niceness, "added to the workers' nice value",
          {.min = 0, .max = 19});
  s.field("cpu_affinity", &LocalOptions::cpu_affinity,
          "bind worker i to its own share of the CPUs");
  s.field("death_timeout", &LocalOptions::death_timeout,
          "a worker leaves when the driver is silent for this long");
  const std::string cluster =
      "a batch-scheduler option, env: " + env + " starts workers on this machine";
  for (const char* key : {"queue",
                          "account",
                          "project",
                          "walltime",
                          "cores",
                          "memory",
                          "job_extra_directives",
                          "job_extra",
                          "job_cpu",
                          "job_mem",
                          "job_script_prologue",
                          "job_script_epilogue",
                          "job_directives_skip",
                          "env_extra",
                          "header_skip",
                          "log_directory",
                          "resource_spec",
                          "shebang",
                          "submit_command_extra",
                          "cancel_command_extra",
                          "job_name",
                          "disk",
                          "image",
                          "namespace"})
    s.elsewhere(key, cluster);
  for (const char* key : {"hosts", "connect_options", "worker_options", "remote_python"})
    s.elsewhere(key, "an option of env: ssh");
  s.elsewhere("interface",
              "put it beside env: parallel.interface (workers of this machine use loopback)");
  s.elsewhere("n_workers", "put it beside env: parallel.n_workers");
  for (const char* key : {"devices", "strategy", "accelerator", "num_nodes", "precision"})
    s.elsewhere(key, "that is training parallelism: put it under trainer:");
  if (env == "local") {
    s.elsewhere("CUDA_VISIBLE_DEVICES", "an option of env: local_gpu");
    s.elsewhere("device_memory_limit", "an option of env: local_gpu");
  }
  s.check([](const Node& node, const LocalOptions& options, Problems& problems) {
    check_memory_limit(options.memory_limit, problems);
    if (!options.processes && !options.memory_limit.is_null() &&
        options.memory_limit.raw() != "auto")
      problems.add(node["memory_limit"], "threads of one process have no memory limit of their own",
                   "use processes: true or remove memory_limit");
  });
  return s;
}

void check_local(const ParallelSettings& settings, const Node& /*block*/, Problems& problems) {
  local_schema("local").parse(drop_options_without_meaning(settings.options, problems), problems);
}

namespace {

// OMP_NUM_THREADS, of which OpenMP takes the first number: "4" or "4,2".
std::optional<int> threads_of_user() {
  const char* set = std::getenv("OMP_NUM_THREADS");
  const int threads = set != nullptr ? std::atoi(set) : 0;
  return threads > 0 ? std::optional(threads) : std::nullopt;
}

}  // namespace

LocalBackend::LocalBackend(const ParallelSettings& settings, const WorkerLaunch& launch)
    : launch_(launch), n_workers_(settings.n_workers) {
  Problems ignored;  // parse_parallel has reported them
  options_ = local_schema(settings.env)
                 .parse(drop_options_without_meaning(settings.options, ignored), ignored);
}

LocalBackend::~LocalBackend() {
  if (!launch_.outlives_driver) cancel();
  for (Job& job : jobs_)
    if (launch_.outlives_driver) job.process.detach();
}

std::map<std::string, std::string> LocalBackend::worker_env(int slot) const {
  std::map<std::string, std::string> env = launch_.env;
  const int cpus = usable_cpus();
  const int threads = options_.threads_per_worker.value_or(
      threads_of_user().value_or(std::max(1, cpus / std::max(1, n_workers_))));
  env[worker_env::kThreads] = std::to_string(threads);
  // What the user set stands, unless threads_per_worker says otherwise.
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
    if (options_.threads_per_worker || std::getenv(name) == nullptr)
      env[name] = std::to_string(threads);
  if (const auto limit = memory_limit_bytes(options_.memory_limit))
    env[worker_env::kMemoryLimit] = std::to_string(limit);
  env[worker_env::kDeathTimeout] = std::to_string(options_.death_timeout.seconds);
  if (options_.niceness != 0) env[worker_env::kNice] = std::to_string(options_.niceness);
  if (options_.cpu_affinity) {
    std::string list;
    for (int i = 0; i < threads; ++i)
      list += (i > 0 ? "," : "") + std::to_string((slot * threads + i) % cpus);
    env[worker_env::kCpus] = list;
  }
  if (!options_.local_directory.empty()) env["TMPDIR"] = options_.local_directory;
  for (const auto& [name, value] : options_.env) env[name] = value;
  return env;
}

Command LocalBackend::worker_command(int id, int slot) const {
  Command command;
  command.argv = launch_.command;
  command.argv.insert(command.argv.end(), {"--id", std::to_string(id)});
  command.env = worker_env(slot);
  command.stdout_path = log_path(id);
  command.die_with_parent = !launch_.outlives_driver;
  return command;
}

std::filesystem::path LocalBackend::log_path(int id) const {
  return launch_.run_folder / "logs" / ("worker-" + std::to_string(id) + ".log");
}

// The lowest slot no living worker holds, so that a replacement gets its predecessor's CPUs or GPU.
int LocalBackend::free_slot() const {
  for (int slot = 0;; ++slot)
    if (std::none_of(jobs_.begin(), jobs_.end(),
                     [&](const Job& job) { return !job.over && job.slot == slot; }))
      return slot;
}

std::vector<JobStatus> LocalBackend::submit(int n) {
  if (!options_.local_directory.empty()) make_folders(options_.local_directory);
  std::vector<JobStatus> started;
  for (int i = 0; i < n; ++i) {
    Job job;
    job.id = next_id_++;
    job.slot = free_slot();
    if (launch_.keys != nullptr) launch_.keys->issue({job.id});
    job.process = Process::start(worker_command(job.id, job.slot));
    job.name = std::to_string(job.process.pid());
    started.push_back({.job_id = job.name,
                       .phase = JobPhase::kRunning,
                       .log = log_path(job.id),
                       .worker_ids = {job.id}});
    jobs_.push_back(std::move(job));
  }
  return started;
}

std::vector<JobStatus> LocalBackend::poll() {
  std::vector<JobStatus> all;
  for (Job& job : jobs_) {
    JobStatus status{.job_id = job.name,
                     .phase = JobPhase::kRunning,
                     .log = log_path(job.id),
                     .worker_ids = {job.id}};
    if (const auto ended = job.process.poll()) {
      job.over = true;
      job.process.signal_group(SIGKILL);  // what the worker itself had started
      status.phase = ended->ok() ? JobPhase::kEnded : JobPhase::kFailed;
      status.reason = ended->describe();
    }
    all.push_back(std::move(status));
  }
  std::erase_if(jobs_, [](const Job& job) { return job.over; });
  return all;
}

bool LocalBackend::cancel(const std::vector<std::string>& job_ids) noexcept {
  for (Job& job : jobs_)
    if (job_ids.empty() || std::find(job_ids.begin(), job_ids.end(), job.name) != job_ids.end())
      job.process.signal_group(SIGKILL);
  return true;
}

std::vector<ScriptPreview> LocalBackend::scripts(int n) const {
  std::vector<ScriptPreview> previews;
  for (int i = 0; i < n; ++i) {
    const Command command = worker_command(i, i);
    std::string line;
    for (const auto& [name, value] : command.env) line += name + "=" + shell_quote(value) + " ";
    previews.push_back({.script = "", .submit_command = line + command.describe()});
  }
  return previews;
}

namespace {

// processes: false. Workers are threads of the driver: they share its memory and its fate, so an
// item that crashes takes the driver along, and one that hangs cannot be ended.
class ThreadBackend final : public Backend {
 public:
  ThreadBackend(const LocalOptions& options, const WorkerLaunch& launch)
      : options_(options), launch_(launch) {}
  ~ThreadBackend() override {
    for (auto& [id, worker] : workers_) {
      if (worker.over->load())
        worker.thread.join();
      else
        worker.thread.detach();  // inside an item; it leaves when it finds the driver gone
    }
  }
  std::vector<JobStatus> submit(int n) override {
    std::vector<JobStatus> started;
    for (int i = 0; i < n; ++i) {
      const int id = next_id_++;
      if (launch_.keys != nullptr) launch_.keys->issue({id});
      auto over =
          std::make_shared<std::atomic<bool>>(false);  // shared: a detached thread may outlive us
      std::thread thread([launch = launch_, id, limit = options_.death_timeout.seconds, over] {
        launch.thread_worker(launch, id, limit);
        *over = true;
      });
      workers_.emplace(id, Worker{std::move(thread), over});
      started.push_back(status(id, JobPhase::kRunning));
    }
    return started;
  }
  std::vector<JobStatus> poll() override {
    std::vector<JobStatus> all;
    for (auto next = workers_.begin(); next != workers_.end();) {
      const auto worker = next++;
      const bool over = worker->second.over->load();
      all.push_back(status(worker->first, over ? JobPhase::kEnded : JobPhase::kRunning));
      if (!over) continue;
      worker->second.thread.join();
      workers_.erase(worker);
    }
    return all;
  }
  // A thread cannot be ended from outside.
  bool cancel(const std::vector<std::string>&) noexcept override { return true; }
  std::vector<ScriptPreview> scripts(int n) const override {
    return std::vector<ScriptPreview>(static_cast<std::size_t>(n),
                                      ScriptPreview{"", "(a thread of the driver)"});
  }

 private:
  struct Worker {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> over;
  };
  static JobStatus status(int id, JobPhase phase) {
    return {.job_id = "thread-" + std::to_string(id),
            .phase = phase,
            .reason = "its thread ended",
            .worker_ids = {id}};
  }

  const LocalOptions options_;
  const WorkerLaunch launch_;
  std::map<int, Worker> workers_;
  int next_id_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_local(const ParallelSettings& settings, const WorkerLaunch& launch,
                                    CommandRunner& /*runner*/) {
  Problems ignored;  // parse_parallel has reported them
  const LocalOptions options =
      local_schema("local").parse(drop_options_without_meaning(settings.options, ignored), ignored);
  if (!options.processes && launch.outlives_driver)
    throw ConfigError("parallel.options.processes: threads end with their driver",
                      "remove it, or async: true");
  if (!options.processes) return std::make_unique<ThreadBackend>(options, launch);
  return std::make_unique<LocalBackend>(settings, launch);
}

config::SchemaInfo local_options_info(const std::string& env) { return local_schema(env).info(); }

}  // namespace tutti::parallel
