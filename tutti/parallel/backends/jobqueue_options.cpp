#include "tutti/parallel/backends/jobqueue_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/parallel/backends/jobqueue_format.h"

namespace tutti::parallel {
namespace {

// The command by which other users may see the environment of a job; null: there is none.
const char* shows_environment(SchedulerKind kind) {
  switch (kind) {
    case SchedulerKind::kPbs:
    case SchedulerKind::kMoab:
      return "qstat -f";
    case SchedulerKind::kSge:
      return "qstat -j";
    case SchedulerKind::kHtcondor:
      return "condor_q -l";
    default:
      return nullptr;
  }
}

using config::Node;
using config::Problems;
using config::Schema;
using O = JobQueueOptions;

bool one_of(SchedulerKind kind, std::initializer_list<SchedulerKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// Options only some schedulers have, and which: one table serves the schemas and the "belongs to"
// errors.
struct Owned {
  const char* key;
  std::vector<SchedulerKind> kinds;
};

const std::vector<Owned>& owned_options() {
  using K = SchedulerKind;
  static const std::vector<Owned> table = {
      {"queue", {K::kSlurm, K::kPbs, K::kMoab, K::kSge, K::kLsf, K::kOar}},
      {"account", {K::kSlurm, K::kPbs, K::kMoab}},
      {"project", {K::kSge, K::kLsf, K::kOar}},
      {"walltime", {K::kSlurm, K::kPbs, K::kMoab, K::kSge, K::kLsf, K::kOar}},
      {"resource_spec", {K::kPbs, K::kMoab, K::kSge, K::kOar}},
      {"job_cpu", {K::kSlurm}},
      {"job_mem", {K::kSlurm}},
      {"ncpus", {K::kLsf}},
      {"mem", {K::kLsf}},
      {"lsf_units", {K::kLsf}},
      {"use_stdin", {K::kLsf}},
      {"disk", {K::kHtcondor}},
      {"submit_command_extra", {K::kHtcondor}},
      {"cancel_command_extra", {K::kHtcondor}},
      {"memory_per_core_property_name", {K::kOar}},
      {"parallel_environment", {K::kSge}},
      {"memory_resource", {K::kSge}},
      {"check_hosts", {K::kSge, K::kHtcondor}},
  };
  return table;
}

bool has(SchedulerKind kind, std::string_view key) {
  for (const Owned& option : owned_options())
    if (option.key == key)
      return std::find(option.kinds.begin(), option.kinds.end(), kind) != option.kinds.end();
  return false;
}

bool is_owned(std::string_view key) {
  const auto& table = owned_options();
  return std::any_of(table.begin(), table.end(), [&](const Owned& o) { return o.key == key; });
}

// Names that people bring from sbatch, qsub and other toolkits, and ours for the same thing.
const std::vector<std::pair<const char*, const char*>>& foreign_names() {
  static const std::vector<std::pair<const char*, const char*>> names = {
      {"partition", "queue"},
      {"partitions", "queue"},
      {"p", "queue"},
      {"q", "queue"},
      {"time", "walltime"},
      {"time_limit", "walltime"},
      {"timeout_min", "walltime"},
      {"h_rt", "walltime"},
      {"cpus_per_task", "cores"},
      {"num_cores", "cores"},
      {"cpus", "cores"},
      {"ntasks_per_node", "processes"},
      {"ntasks", "processes"},
      {"mem_gb", "memory"},
      {"mem_per_cpu", "memory"},
      {"h_vmem", "memory"},
      {"mem_free", "memory"},
      {"pe", "parallel_environment"},
      {"charge_account", "account"},
      {"log_dir", "log_directory"},
      {"logdir", "log_directory"},
      {"output", "log_directory"},
      {"error", "log_directory"},
      {"setup", "job_script_prologue"},
      {"modules", "job_script_prologue"}};
  return names;
}

// Options of sbatch and others that have no name of their own here, and the directive that they
// are: up to the value, and a value for who gave none.
struct ForeignDirective {
  const char* key;
  const char* directive;
  const char* value;
};

const std::vector<ForeignDirective>& foreign_directives() {
  static const std::vector<ForeignDirective> names = {{"gres", "--gres=", "gpu:1"},
                                                      {"gpus", "--gres=gpu:", "1"},
                                                      {"gpus_per_node", "--gres=gpu:", "1"},
                                                      {"gpus_per_task", "--gres=gpu:", "1"},
                                                      {"gpu", "--gres=gpu:", "1"},
                                                      {"num_gpus", "--gres=gpu:", "1"},
                                                      {"n_gpus", "--gres=gpu:", "1"},
                                                      {"qos", "--qos=", "NAME"},
                                                      {"constraint", "--constraint=", "NAME"},
                                                      {"exclude", "--exclude=", "NODES"},
                                                      {"nodelist", "--nodelist=", "NODES"},
                                                      {"exclusive", "--exclusive", ""},
                                                      {"reservation", "--reservation=", "NAME"},
                                                      {"mail_type", "--mail-type=", "FAIL"},
                                                      {"mail_user", "--mail-user=", "ADDRESS"},
                                                      {"nodes", "--nodes=", "1"}};
  return names;
}

// The directive with the value that stands in the file, ready to be copied.
std::string directive_with_value(const ForeignDirective& foreign, const Node& options) {
  std::string value = foreign.value;
  const Node given = options.is_map() ? options[foreign.key] : Node();
  if (!value.empty() && given.defined() && given.is_scalar() && !given.is_null() &&
      !given.raw().empty() && given.raw() != "true" &&
      given.raw().find_first_of("'\n") == std::string::npos)
    value = given.raw();
  return std::string(foreign.directive) + value;
}

// What to use instead, where a scheduler expresses the same thing otherwise.
std::string instead(SchedulerKind kind, std::string_view key) {
  using K = SchedulerKind;
  if (kind == K::kHtcondor && key == "walltime")
    return "limit the time with job_extra_directives: {allowed_job_duration: 7200}";
  if (kind == K::kHtcondor && key == "queue")
    return "HTCondor has no queues; use job_extra_directives: {Requirements: ...}";
  if (kind == K::kHtcondor && key == "account")
    return "use job_extra_directives: {accounting_group: ...}";
  if (kind == K::kHtcondor && key == "project")
    return "use job_extra_directives: {+ProjectName: '\"...\"'}";
  if (kind == K::kLsf && key == "account") return "use project";
  if (one_of(kind, {K::kSge, K::kOar}) && key == "account")
    return "use project, or job_extra_directives: ['-A ...']";
  if (kind == K::kSlurm && key == "resource_spec")
    return "use job_cpu, job_mem or job_extra_directives";
  if (kind == K::kLsf && key == "resource_spec") return "use job_extra_directives: ['-R \"...\"']";
  if (key == "job_cpu" || key == "ncpus") return "use cores";
  if (key == "job_mem" || key == "mem") return "use memory";
  if (key == "disk") return "use job_extra_directives";
  return "remove it";
}

// Accepts dask's dashes, and the five old names: the new one wins unless it is empty.
Node normalise(SchedulerKind kind, const Node& options, Problems& problems) {
  auto copy = std::make_shared<config::Value>(*options.value());
  for (auto& [key, value] : copy->map) std::replace(key.begin(), key.end(), '-', '_');
  std::map<std::string, std::string> renamed = {{"extra", "worker_extra_args"},
                                                {"env_extra", "job_script_prologue"},
                                                {"job_extra", "job_extra_directives"},
                                                {"header_skip", "job_directives_skip"}};
  if (has(kind, "account")) renamed.emplace("project", "account");
  const auto find = [&](const std::string& key) {
    return std::find_if(copy->map.begin(), copy->map.end(),
                        [&](const auto& entry) { return entry.first == key; });
  };
  for (const auto& [old_key, new_key] : renamed) {
    const auto old_entry = find(old_key);
    if (old_entry == copy->map.end()) continue;
    problems.warn(options[old_key], fmt::format("'{}' is an old name", old_key),
                  fmt::format("use '{}'", new_key));
    const auto new_entry = find(new_key);
    const bool replaced = new_entry != copy->map.end();
    const bool empty =
        replaced &&
        (new_entry->second->kind == config::Kind::kNull ||
         (new_entry->second->kind == config::Kind::kList && new_entry->second->list.empty()) ||
         (new_entry->second->kind == config::Kind::kMap && new_entry->second->map.empty()));
    if (!replaced) {
      old_entry->first = new_key;
    } else {
      if (empty) new_entry->second = old_entry->second;
      copy->map.erase(find(old_key));
    }
  }
  return Node(std::move(copy), options.path());
}

// One line of a script must stay one line: a newline in a value would smuggle in a second.
void check_single_line(const Node& node, Problems& problems) {
  if (node.is_scalar() && node.raw().find('\n') != std::string::npos)
    problems.add(node, "got a value with a line break, expected one line");
  for (const Node& element : node.elements()) check_single_line(element, problems);
  if (node.is_map())
    for (const auto& [key, element] : node.items()) check_single_line(element, problems);
}

void read_extra_directives(SchedulerKind kind, O& out, Problems& problems) {
  const Node& node = out.job_extra_directives;
  if (node.is_null()) return;
  if (kind == SchedulerKind::kHtcondor) {
    if (!node.is_map()) {
      problems.add(node, "got " + node.describe_value() + ", expected a map",
                   "write job_extra_directives: {Requirements: '(OpSys == \"LINUX\")'}");
      return;
    }
    for (const auto& [key, value] : node.items())
      out.extra_assignments.emplace_back(key, value.is_null() ? "" : value.raw());
    return;
  }
  const auto add = [&](const Node& at, const std::string& text) {
    if (text.empty() || (text[0] != '-' && text[0] != '+')) {
      // "#SBATCH --gres=gpu:1", as in a script.
      const bool is_script_line = text.starts_with('#');
      const auto blank = text.find_first_of(" \t");
      problems.add(at, fmt::format("got '{}', expected an option such as '--gres=gpu:1'", text),
                   is_script_line && blank != std::string::npos
                       ? fmt::format("leave out '{}': write '{}'", text.substr(0, blank),
                                     trim(text.substr(blank)))
                       : "begin it with a dash");
    }
    out.extra_directives.push_back(text);
  };
  if (node.is_list()) {
    for (const Node& element : node.elements()) {
      if (element.is_scalar()) {
        add(element, element.raw());
      } else if (element.is_map() && element.size() == 1) {  // `- --gres: gpu:1` reads as a map
        const auto [key, value] = element.items()[0];
        add(element,
            value.is_null() ? key : key + (key.starts_with("--") ? "=" : " ") + value.raw());
      } else {
        problems.add(element, "got " + element.describe_value() + ", expected an option as text");
      }
    }
  } else if (node.is_map()) {
    for (const auto& [key, value] : node.items())
      add(node, value.is_null() ? key : key + (key.starts_with("--") ? "=" : " ") + value.raw());
  } else {
    problems.add(node, "got " + node.describe_value() + ", expected a list of options",
                 "write job_extra_directives: ['--gres=gpu:1']");
  }
}

// Dask's worker flags that have a meaning here; the rest goes to our worker, which knows its own
// flags.
void read_worker_extra_args(const Node& options, O& out, Problems& problems) {
  std::vector<std::string> words;
  for (const std::string& arg : out.worker_extra_args)
    for (const std::string& word : split_words(arg)) {
      const auto equals = word.starts_with("--") ? word.find('=') : std::string::npos;
      words.push_back(word.substr(0, equals));
      if (equals != std::string::npos) words.push_back(word.substr(equals + 1));
    }
  const Node at = options["worker_extra_args"];
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool stagger = words[i] == "--lifetime-stagger";
    if (!stagger && words[i] != "--lifetime") {
      kept.push_back(words[i]);
      continue;
    }
    const auto value = i + 1 < words.size() ? parse_duration(words[i + 1]) : std::nullopt;
    if (!value) problems.add(at, words[i] + " needs a duration", "write --lifetime 55m");
    (stagger ? out.lifetime_stagger_s : out.lifetime_s) = value;
    ++i;
  }
  static const std::map<std::string, std::string> kRefused = {
      {"--nthreads", "set cores and processes"},
      {"--nworkers", "set processes"},
      {"--nprocs", "set processes"},
      {"--memory-limit", "set memory"},
      {"--death-timeout", "set death_timeout"},
      {"--local-directory", "set local_directory"},
      {"--interface", "set interface"},
      {"--resources", "items need no resources here; make two parallel blocks"},
      {"--preload", "name a plugin in parallel.plugins"}};
  for (const std::string& word : kept)
    if (const auto found = kRefused.find(word); found != kRefused.end())
      problems.add(at, fmt::format("{} is a flag of dask-worker", word), found->second);
  out.worker_extra_args = kept;
}

// `python: apptainer exec IMG python`: everything before the interpreter is a launcher; ours needs
// no Python.
void read_python(const Node& options, O& out, Problems& problems) {
  if (!out.python) return;
  auto words = split_words(*out.python);
  const auto is_interpreter = [](const std::string& word) {
    const auto base = word.substr(word.rfind('/') + 1);
    return base.starts_with("python") || base.starts_with("pypy");
  };
  if (!words.empty() && is_interpreter(words.back())) words.pop_back();
  if (words.empty())
    problems.warn(options["python"], "has no effect: workers are the tutti program itself",
                  "remove it");
  out.launcher = words;
}

void notice(const Node& node, Problems& problems, const std::string& why) {
  if (node.defined() && !node.is_null()) problems.warn(node, "has no effect: " + why, "remove it");
}

void notices(const O& out, const Node& options, Problems& problems) {
  if (out.nanny.defined() && !out.nanny.is_null() && out.nanny.is_scalar() &&
      out.nanny.raw() == "false")
    problems.warn(
        out.nanny,
        "has no effect: there is no nanny process; dead workers are replaced by the driver",
        "remove it");
  notice(out.config_name, problems, "defaults come from this file, not from jobqueue.yaml");
  notice(out.shared_temp_directory, problems, "keys are in the run folder, readable by you alone");
  notice(out.name, problems, "workers are numbered; job_name is the name in the queue");
  notice(out.scheduler_cls, problems, "it names a Python class");
  notice(out.job_cls, problems, "it names a Python class");
  notice(out.loop, problems, "it is a Python event loop");
  notice(out.silence_logs, problems, "use --quiet");
  notice(out.asynchronous, problems,
         "it is about Python's asyncio; for a driver that may leave, set parallel.async");
  if (out.security.is_map())
    problems.add(out.security,
                 "own certificates are not used: each run makes fresh keys in a 0600 file",
                 "remove it");
  else
    notice(out.security, problems, "connections are always authenticated and encrypted");
  if (!out.protocol.is_null() && out.protocol.is_scalar()) {
    const std::string& text = out.protocol.raw();
    if (!text.starts_with("tcp") && !text.starts_with("tls"))
      problems.add(out.protocol, fmt::format("got '{}', expected tcp:// or tls://", text),
                   "remove it");
    else
      notice(out.protocol, problems, "workers use one encrypted TCP connection");
  }
  if (out.scheduler_options.is_map()) {
    for (const auto& [key, value] : out.scheduler_options.items()) {
      if (key == "host" || key == "interface" || key == "port" || key == "contact_address")
        problems.add(value, "the driver listens on a free port of every address by itself",
                     "set parallel.interface to prefer one network");
      else
        problems.warn(value, "has no effect: it is an option of Dask's scheduler", "remove it");
    }
  }
  if (out.worker_command && out.worker_command->find('/') == std::string::npos &&
      out.worker_command->find('.') != std::string::npos)
    problems.warn(options["worker_command"], "has no effect: it names a Python module",
                  "give the path of a tutti program, or remove it");
}

// GPUs that "--gres=gpu:a100:2" asks for; 0: none, or it cannot be told.
int gpus_of(std::string_view directive) {
  constexpr std::string_view kGres = "--gres=";
  if (!directive.starts_with(kGres)) return 0;
  int count = 0;
  for (const std::string& resource : split(directive.substr(kGres.size()), ',')) {
    const auto parts = split(resource, ':');
    if (parts[0] != "gpu") continue;
    const bool has_count = parts.size() > 1 && !parts.back().empty() && parts.back().size() < 4 &&
                           parts.back().find_first_not_of("0123456789") == std::string::npos;
    count += has_count ? std::stoi(parts.back()) : 1;
  }
  return count;
}

void check_gpus(const Node& options, const O& out, Problems& problems) {
  for (const std::string& directive : out.extra_directives)
    if (const int gpus = gpus_of(directive); gpus > 0 && gpus < out.processes)
      problems.warn(options["job_extra_directives"],
                    fmt::format("{} workers of a job share {} GPU{}", out.processes, gpus,
                                gpus == 1 ? "" : "s"),
                    fmt::format("set processes: {}, or ask for {} GPUs", gpus, out.processes));
}

// The time limit that a directive of the user's own sets: "--time=2:00:00", "-l h_rt=7200". Else
// empty.
std::string time_limit_in(SchedulerKind kind, const std::string& directive) {
  const std::string name = directive_name(directive);
  const auto words = split_words(directive);
  const bool is_slurm = kind == SchedulerKind::kSlurm;
  if ((is_slurm && (name == "-t" || name == "--time")) ||
      (kind == SchedulerKind::kLsf && name == "-W")) {
    const auto equals = directive.find('=');
    if (name == "--time" && equals != std::string::npos)
      return std::string(trim(directive.substr(equals + 1)));
    return words.size() > 1 ? words[1] : "";
  }
  if (is_slurm || name != "-l") return "";
  for (const std::string& word : words)
    for (const std::string& part : split(word, ','))
      for (const std::string_view key : {"walltime=", "h_rt="})
        if (part.starts_with(key)) return part.substr(key.size());
  return "";
}

// Workers leave before the job's end: they must know the one that the scheduler goes by.
void take_own_time_limit(SchedulerKind kind, const Node& options, O& out, Problems& problems) {
  for (const std::string& directive : out.extra_directives) {
    const std::string limit = time_limit_in(kind, directive);
    if (limit.empty()) continue;
    const auto seconds = parse_walltime(kind, limit);
    const bool known = seconds && *seconds > 0;
    if (!known || (out.walltime && parse_walltime(kind, *out.walltime) != seconds))
      problems.warn(
          options["job_extra_directives"],
          known ? fmt::format("'{}' is the limit, and not walltime: {}", directive, *out.walltime)
                : fmt::format("the time in '{}' is not understood: workers leave by "
                              "walltime: {}",
                              directive, out.walltime.value_or("00:30:00")),
          "give the time as walltime, and leave this directive out");
    if (known) out.walltime = limit;
  }
}

void check_shape(SchedulerKind kind, const Node& options, O& out, Problems& problems) {
  if (out.cores >= 1 && out.processes == 0) out.processes = default_processes(out.cores);
  if (kind == SchedulerKind::kSlurm) check_gpus(options, out, problems);
  if (out.cores >= 1 && out.processes >= 1 && out.cores % out.processes != 0)
    problems.add(options["processes"],
                 fmt::format("got {}, but cores = {} cannot be shared evenly among them",
                             out.processes, out.cores),
                 "make cores a multiple of processes");
  if (out.memory.count == 0 && options["memory"].defined() && !options["memory"].is_null() &&
      problems.empty())
    problems.add(options["memory"], "got 0, expected a size per job", "write memory: 16GB");
  if (kind == SchedulerKind::kHtcondor && !out.disk && problems.empty())
    problems.add(options, "key 'disk' is missing", "add disk: 4GB (per job)");
  if (!has(kind, "walltime")) return;
  take_own_time_limit(kind, options, out, problems);
  if (!out.walltime) out.walltime = kind == SchedulerKind::kLsf ? "00:30" : "00:30:00";
  if (const auto seconds = parse_walltime(kind, *out.walltime); seconds && *seconds > 0) {
    out.walltime_s = *seconds;
    // People mean hours by 08:00, and anything by 30.
    if (is_doubtful_walltime(kind, *out.walltime))
      problems.warn(options["walltime"],
                    fmt::format("'{}' means {} to {}", *out.walltime, format_duration(*seconds),
                                scheduler_name(kind)),
                    "write HH:MM:SS, or 90m or 8h");
  } else {
    problems.add(options["walltime"],
                 fmt::format("got '{}', expected a time such as 02:00:00", *out.walltime),
                 "write HH:MM:SS with minutes and seconds up to 59, D-HH:MM:SS, 90m or 2h30m");
  }
}

}  // namespace

const char* scheduler_name(SchedulerKind kind) {
  switch (kind) {
    case SchedulerKind::kSlurm:
      return "slurm";
    case SchedulerKind::kPbs:
      return "pbs";
    case SchedulerKind::kMoab:
      return "moab";
    case SchedulerKind::kSge:
      return "sge";
    case SchedulerKind::kLsf:
      return "lsf";
    case SchedulerKind::kHtcondor:
      return "htcondor";
    case SchedulerKind::kOar:
      return "oar";
  }
  return "?";
}

int default_processes(int cores) {
  if (cores <= 4) return cores;
  for (int divisor = 1; divisor <= cores; ++divisor)
    if (cores % divisor == 0 && divisor * divisor >= cores) return divisor;
  return cores;
}

Schema<O> jobqueue_schema(SchedulerKind kind, const Node& options) {
  Schema<O> s(scheduler_name(kind),
              "Options of the batch scheduler; cores, memory and processes are per job.");
  s.field("cores", &O::cores, "cores of a job, shared by its processes",
          {.min = 1, .required = true});
  s.field("memory", &O::memory,
          "memory of a job, shared by its processes; GB or G: 10^9 bytes, GiB: 2^30 bytes",
          {.unit = "bytes", .required = true});
  s.field(
      "processes", &O::processes,
      "workers in a job; 0: one per core up to 4 cores, above that the smallest divisor of cores "
      "that is not below their square root",
      {.min = 0});
  s.field("interface", &O::interface, "network interface by which workers reach the driver");
  s.field("death_timeout", &O::death_timeout, "a worker without a driver leaves after this",
          {.min = 0, .unit = "seconds"});
  s.field("local_directory", &O::local_directory,
          "scratch folder on the node; $VAR is expanded in the job");
  s.field("worker_command", &O::worker_command,
          "program to run as the worker instead of this tutti");
  s.field("worker_extra_args", &O::worker_extra_args,
          "more words for the worker; --lifetime and --lifetime-stagger are understood");
  s.field("python", &O::python,
          "words before the interpreter become a launcher (apptainer exec IMG python)");
  s.field("job_name", &O::job_name, "name of the job in the queue");
  s.field("shebang", &O::shebang, "first line of the script");
  s.field("job_script_prologue", &O::job_script_prologue, "shell lines before the workers");
  s.field("job_script_epilogue", &O::job_script_epilogue, "shell lines after the workers");
  s.field("job_extra_directives", &O::job_extra_directives,
          "more options for the scheduler, never skipped");
  s.field("job_directives_skip", &O::job_directives_skip,
          "generated directives to leave out, by exact name (--mem, -n, walltime)");
  s.field("log_directory", &O::log_directory,
          "where jobs write their output; default: logs/ in the run folder");
  s.field("drain_margin", &O::drain_margin,
          "a worker takes no item in this last part of the walltime; null: a tenth, 10 s to 5 min",
          {.min = 0, .unit = "seconds"});
  s.field(
      "export_keys", &O::export_keys,
      "hand the workers' keys to their jobs through the scheduler's environment export too, for "
      "nodes that may not read the 0600 files in the run folder");
  s.field("job_array", &O::job_array, "submit several jobs as one array where the scheduler can");
  const auto own = [&](auto key, auto member, auto doc, config::Rule rule = {}) {
    if (has(kind, key)) s.field(key, member, doc, std::move(rule));
  };
  own("queue", &O::queue, "queue or partition");
  own("account", &O::account, "account to charge");
  own("project", &O::project, "project to charge");
  own("walltime", &O::walltime,
      "time limit of a job: HH:MM:SS, D-HH:MM:SS, 90m, or the scheduler's own form; null: half an "
      "hour (00:30:00)");
  own("resource_spec", &O::resource_spec,
      "the resource request in the scheduler's words, instead of the computed one");
  own("job_cpu", &O::job_cpu, "CPUs to request, when not cores", {.min = 1});
  own("job_mem", &O::job_mem, "memory to request, in Slurm's words");
  own("ncpus", &O::ncpus, "slots to request, when not cores", {.min = 1});
  own("mem", &O::mem, "memory to request, when not memory");
  own("lsf_units", &O::lsf_units,
      "LSF_UNIT_FOR_LIMITS of the cluster: kb, mb, gb, tb; default: from lsf.conf");
  own("use_stdin", &O::use_stdin, "bsub < script, else bsub script");
  own("disk", &O::disk, "disk of a job");
  own("submit_command_extra", &O::submit_command_extra, "more words for condor_submit");
  own("cancel_command_extra", &O::cancel_command_extra, "more words for condor_rm");
  own("memory_per_core_property_name", &O::memory_per_core_property_name,
      "the property that holds MiB per core; not_applicable: none");
  own("parallel_environment", &O::parallel_environment,
      "parallel environment for jobs of more than one core");
  own("memory_resource", &O::memory_resource,
      "resource that requests memory per slot; \"\": request none");
  own("check_hosts", &O::check_hosts,
      "refuse what no host has the memory for (false: wait for hosts that come later)");
  for (const auto& [key, member] : std::initializer_list<std::pair<const char*, Node O::*>>{
           {"nanny", &O::nanny},
           {"protocol", &O::protocol},
           {"security", &O::security},
           {"shared_temp_directory", &O::shared_temp_directory},
           {"config_name", &O::config_name},
           {"name", &O::name},
           {"scheduler_options", &O::scheduler_options},
           {"scheduler_cls", &O::scheduler_cls},
           {"silence_logs", &O::silence_logs},
           {"asynchronous", &O::asynchronous},
           {"loop", &O::loop},
           {"job_cls", &O::job_cls}})
    s.field(key, member, "of dask-jobqueue; accepted, see docs/backends.md");
  s.elsewhere("n_workers", "belongs one level up: parallel.n_workers");
  for (const auto& [theirs, ours] : foreign_names()) {
    const bool is_here = has(kind, ours) || !is_owned(ours);
    s.elsewhere(theirs, is_here ? fmt::format("is called {} here", ours) : instead(kind, ours));
  }
  const bool is_map = kind == SchedulerKind::kHtcondor;
  for (const ForeignDirective& foreign : foreign_directives())
    s.elsewhere(foreign.key, is_map ? "is written under job_extra_directives: {name: value}"
                                    : fmt::format("is written under job_extra_directives: ['{}']",
                                                  directive_with_value(foreign, options)));
  s.elsewhere("host", "the driver listens by itself; to prefer a network set parallel.interface");
  s.elsewhere("dashboard_address", "there is no dashboard; use `tutti status DIR`");
  for (const Owned& option : owned_options()) {
    if (has(kind, option.key)) continue;
    std::vector<std::string> names;
    for (const SchedulerKind k : option.kinds) names.emplace_back(scheduler_name(k));
    s.elsewhere(option.key, fmt::format("is an option of {}, not of {}; {}", join(names, ", "),
                                        scheduler_name(kind), instead(kind, option.key)));
  }
  for (const char* key : {"threads_per_worker", "memory_limit", "CUDA_VISIBLE_DEVICES"})
    s.elsewhere(
        key, fmt::format("is an option of local and local_gpu, not of {}", scheduler_name(kind)));
  for (const char* key : {"hosts", "connect_options", "worker_options", "remote_python"})
    s.elsewhere(key, fmt::format("is an option of ssh, not of {}", scheduler_name(kind)));
  for (const char* key : {"image", "namespace", "resources", "custom_cluster_spec"})
    s.elsewhere(key, fmt::format("is an option of kube, not of {}", scheduler_name(kind)));
  return s;
}

O parse_jobqueue_options(SchedulerKind kind, const Node& options, Problems& problems) {
  if (!options.is_map()) return jobqueue_schema(kind, options).parse(options, problems);
  const Node normal = normalise(kind, options, problems);
  O out = jobqueue_schema(kind, normal).parse(normal, problems);
  for (const auto& [key, value] : normal.items())
    if (key != "job_script_prologue" && key != "job_script_epilogue")
      check_single_line(value, problems);
  if (split_words(out.job_name).size() != 1)
    problems.add(normal["job_name"], fmt::format("got '{}', expected one word", out.job_name),
                 "leave out spaces");
  read_extra_directives(kind, out, problems);
  read_worker_extra_args(normal, out, problems);
  read_python(normal, out, problems);
  if (out.export_keys && kind == SchedulerKind::kOar)
    problems.add(normal["export_keys"], "OAR exports no environment to jobs", "remove it");
  else if (const char* shows = shows_environment(kind); out.export_keys && shows != nullptr)
    problems.warn(normal["export_keys"],
                  fmt::format("the keys of a submission's workers go into its jobs' environment, "
                              "which `{}` may show to other users: while the run lives they could "
                              "pose as one of these workers",
                              shows),
                  "a run folder that the nodes share needs no export_keys (docs/security.md)");
  notices(out, normal, problems);
  check_shape(kind, normal, out, problems);
  return out;
}

}  // namespace tutti::parallel
