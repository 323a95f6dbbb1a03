// tutti doctor: what this machine has and what each `env` would need here. Looks, changes nothing,
// never fails.
#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/version.h"
#include "tutti/config/gpu_count.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/program.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/core/tiles.h"
#include "tutti/core/units.h"

namespace tutti::apps {
namespace {
namespace fs = std::filesystem;

std::vector<fs::path> folders_of(const char* variable) {
  std::vector<fs::path> folders;
  const char* value = std::getenv(variable);
  for (const auto& folder : split(value ? value : "", ':'))
    if (!folder.empty()) folders.emplace_back(folder);
  return folders;
}

std::string find_program(const std::string& name) {
  for (const fs::path& folder : folders_of("PATH")) {
    const fs::path program = folder / name;
    if (::access(program.c_str(), X_OK) == 0) return program.string();
  }
  return {};
}

// The first library whose file name begins so, in the folders the loader looks into. A relocatable folder brings its own.
std::string find_library(const std::string& prefix) {
  std::vector<fs::path> folders = {own_program().parent_path().parent_path() / "lib"};
  for (const fs::path& folder : folders_of("LD_LIBRARY_PATH")) folders.push_back(folder);
  if (const char* torch = std::getenv("TUTTI_TORCH_ROOT"))
    folders.push_back(fs::path(torch) / "lib");
  for (const char* folder :
       {"/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
        "/usr/lib", "/usr/local/cuda/lib64"})
    folders.emplace_back(folder);
  for (const fs::path& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
      if (it->path().filename().string().starts_with(prefix)) return it->path().string();
  }
  return {};
}

// One command that tells its version, and which envs it serves.
struct Tool {
  const char* name;
  std::vector<std::string> version_command;
};

const std::vector<Tool>& tools() {
  static const std::vector<Tool> kTools = {{"sbatch", {"sbatch", "--version"}},
                                           {"srun", {"srun", "--version"}},
                                           {"qsub", {"qsub", "--version"}},
                                           {"qconf", {"qconf", "-help"}},
                                           {"bsub", {"bsub", "-V"}},
                                           {"condor_submit", {"condor_version"}},
                                           {"msub", {"msub", "--version"}},
                                           {"oarsub", {"oarsub", "--version"}},
                                           {"ssh", {"ssh", "-V"}},
                                           {"kubectl", {"kubectl", "version", "--client"}},
                                           {"mpirun", {"mpirun", "--version"}},
                                           {"torchrun", {}}};
  return kTools;
}

std::string version_of(const Tool& tool) {
  if (tool.version_command.empty()) return {};
  const CommandResult result =
      run_command({.argv = tool.version_command, .timeout = std::chrono::seconds(2)});
  const std::string& text = trim(result.out).empty() ? result.err : result.out;
  const std::string line(trim(split(std::string(trim(text)), '\n')[0]));
  return line.size() > 100 ? line.substr(0, 100) : line;
}

Json find_tools() {
  std::vector<std::pair<const Tool*, std::future<std::string>>> running;
  Json out = Json::object();
  for (const Tool& tool : tools()) {
    const std::string path = find_program(tool.name);
    if (path.empty()) continue;
    out[tool.name] = {{"path", path}, {"version", ""}};
    running.emplace_back(&tool,
                         std::async(std::launch::async, [&tool] { return version_of(tool); }));
  }
  for (auto& [tool, version] : running) out[tool->name]["version"] = version.get();
  return out;
}

Json find_gpus() {
  Json names = Json::array();
  std::error_code error;
  for (fs::directory_iterator it("/proc/driver/nvidia/gpus", error), end; !error && it != end;
       it.increment(error)) {
    try {
      for (const auto& line : split(read_file(it->path() / "information"), '\n'))
        if (line.starts_with("Model:")) names.push_back(std::string(trim(line.substr(6))));
    } catch (const IoError&) {
      names.push_back("unreadable");  // a locked-down container hides the details
    }
  }
  return {{"visible", config::count_visible_gpus()}, {"names", names}};
}

Json find_libraries() {
  Json out = Json::object();
  for (const auto& [name, prefix] :
       {std::pair{"libtorch", "libtorch_cpu.so"}, std::pair{"nccl", "libnccl.so"},
        std::pair{"gloo", "libgloo.so"}, std::pair{"cuda driver", "libcuda.so"},
        std::pair{"nvml", "libnvidia-ml.so"}}) {
    const std::string path = find_library(prefix);
    out[name] = path.empty() ? Json() : Json(path);
  }
  return out;
}

Json machine() {
  struct sysinfo info {};
  ::sysinfo(&info);
  const auto bytes = [&](unsigned long amount) {
    return static_cast<std::uint64_t>(amount) * info.mem_unit;
  };
  const TileFacts tiles = look_at_tiles();
  return {{"cores", std::thread::hardware_concurrency()},
          {"amx", {{"shown", tiles.shown}, {"fault", tile_fault(tiles)}}},
          {"onednn_limit", onednn_limit()},
          {"onednn_bf16", onednn_does_bf16()},
          {"memory_bytes", bytes(info.totalram)},
          {"free_bytes", bytes(info.freeram + info.bufferram)}};
}

// How bf16 is multiplied on this CPU, for people: what they get first, then why.
std::string bf16_line(const Json& machine) {
  const std::string limit = machine["onednn_limit"], fault = machine["amx"]["fault"];
  const bool shown = machine["amx"]["shown"];
  // Not less exact (tutti/trainer/cpu/bf16_at_start.cpp).
  std::string line = machine["onednn_bf16"].get<bool>()
                         ? "exact (summed in float32), by oneDNN"
                         : "exact (summed in float32), but no faster than precision: 32, as oneDNN "
                           "has no AVX-512 to use";
  line += !shown          ? "; no tile unit (AMX)"
          : fault.empty() ? "; tile unit (AMX)"
                          : "; AMX shown, but " + fault;
  if (!limit.empty())
    line += fmt::format("; {} is set", limit);
  else if (!fault.empty())
    line += ": programs limit oneDNN to AVX-512";
  return line;
}

// What submits for an env, and the question that only a scheduler that is up can answer.
struct Scheduler {
  const char* env;
  const char* name;
  const char* submit;
  std::vector<std::string> question;
  bool lists_queues = false;  // the answer has a queue at the beginning of each line
};

const std::vector<Scheduler>& schedulers() {
  static const std::vector<Scheduler> kSchedulers = {
      {"slurm", "Slurm", "sbatch", {"sinfo", "--noheader", "--format=%P"}, true},
      {"pbs", "PBS", "qsub", {"qstat", "-Q"}, true},
      {"sge", "Grid Engine", "qsub", {"qconf", "-sql"}, true},
      {"lsf", "LSF", "bsub", {"bqueues", "-w"}, true},
      {"htcondor", "HTCondor", "condor_submit", {"condor_q", "-totals"}},
      {"moab", "Moab", "msub", {"showq"}},
      {"oar", "OAR", "oarsub", {"oarstat"}},
      {"ssh", "ssh", "ssh", {}},
      {"kube",
       "Kubernetes",
       "kubectl",
       {"kubectl", "--request-timeout=4s", "auth", "can-i", "create", "pods"}}};
  return kSchedulers;
}

std::string last_line(const std::string& text) {
  std::string line(trim(text));
  line = line.substr(line.rfind('\n') == std::string::npos ? 0 : line.rfind('\n') + 1);
  return line.size() > 150 ? line.substr(0, 150) + "..." : line;
}

struct EnvState {
  std::string missing;  // "" when it can be used from here
  std::vector<std::string> queues;
};

// What `options.queue` may name. Slurm marks its default partition with a star.
std::vector<std::string> queues_in(const std::string& answer) {
  std::vector<std::string> queues;
  for (const auto& line : split(answer, '\n')) {
    const auto words = split_words(line);
    if (words.empty() || words[0] == "Queue" || words[0] == "QUEUE_NAME" || words[0][0] == '-')
      continue;  // headers
    std::string queue(words[0]);
    if (queue.back() == '*') queue.replace(queue.size() - 1, 1, " (default)");
    if (std::find(queues.begin(), queues.end(), queue) == queues.end())
      queues.push_back(std::move(queue));
  }
  return queues;
}

// Usable are those whose programs are there and whose scheduler itself answers.
EnvState look_at(const Scheduler& scheduler) {
  if (find_program(scheduler.submit).empty())
    return {fmt::format("needs `{}` on PATH", scheduler.submit), {}};
  if (scheduler.question.empty()) return {};
  // Both have commands of these names.
  if (std::string_view(scheduler.env) == "pbs" && find_program("pbsnodes").empty() &&
      !find_program("qconf").empty())
    return {"`qsub` here is Grid Engine's: use env: sge", {}};
  if (find_program(scheduler.question[0]).empty())
    return {fmt::format("`{}` is here, but not {}'s `{}`", scheduler.submit, scheduler.name,
                        scheduler.question[0]),
            {}};
  const CommandResult answer =
      run_command({.argv = scheduler.question, .timeout = std::chrono::seconds(5)});
  if (answer.ok())
    return {"", scheduler.lists_queues ? queues_in(answer.out) : std::vector<std::string>()};
  if (answer.timed_out)
    return {fmt::format("`{}` is here, but {} did not answer `{}` within 5 s", scheduler.submit,
                        scheduler.name, join(scheduler.question, " ")),
            {}};
  const std::string words = last_line(trim(answer.err).empty() ? answer.out : answer.err);
  return {fmt::format("`{}` is here, but {} does not answer: {}", scheduler.submit, scheduler.name,
                      words.empty() ? answer.describe() : words),
          {}};
}

Json find_envs(const Json& gpus) {
  Json out = Json::object();
  const auto put = [&](const char* env, const EnvState& state) {
    out[env] = {{"usable", state.missing.empty()}, {"needs", state.missing}};
    if (!state.queues.empty()) out[env]["queues"] = state.queues;
  };
  put("local", {});
  put("local_gpu", {gpus["visible"] > 0 ? "" : "needs a visible NVIDIA GPU", {}});
  std::vector<std::pair<const char*, std::future<EnvState>>> asked;
  for (const Scheduler& scheduler : schedulers())
    asked.emplace_back(scheduler.env,
                       std::async(std::launch::async, [&scheduler] { return look_at(scheduler); }));
  for (auto& [env, state] : asked) put(env, state.get());
  return out;
}

void print_text(const Json& report) {
  const Json& v = report["versions"];
  fmt::print("tutti      {} ({}), built with torch {}, CUDA {}\n", v["tutti"].get<std::string>(),
             v["commit"].get<std::string>(), v["torch"].get<std::string>(),
             v["cuda"].get<std::string>());
  const Json& m = report["machine"];
  fmt::print("machine    {} cores, {} memory ({} free)\n", m["cores"].get<unsigned>(),
             format_bytes(m["memory_bytes"].get<std::uint64_t>()),
             format_bytes(m["free_bytes"].get<std::uint64_t>()));
  fmt::print("bf16       {}\n", bf16_line(m));
  fmt::print("GPUs       {} visible", report["gpus"]["visible"].get<int>());
  for (const auto& name : report["gpus"]["names"]) fmt::print(", {}", name.get<std::string>());
  fmt::print("\nlibraries\n");
  for (const auto& [name, path] : report["libraries"].items())
    fmt::print("  {:<12} {}\n", name, path.is_null() ? "not found" : path.get<std::string>());
  fmt::print("programs\n");
  for (const auto& [name, tool] : report["programs"].items())
    fmt::print("  {:<14} {}\n", name, tool["version"].get<std::string>());
  fmt::print("parallel.env\n");
  for (const auto& [env, state] : report["envs"].items()) {
    std::string words = state["usable"].get<bool>() ? "ready" : state["needs"].get<std::string>();
    if (state.contains("queues"))
      words += "; queues: " + join(state["queues"].get<std::vector<std::string>>(), ", ");
    fmt::print("  {:<12} {}\n", env, words);
  }
}

// By the sibling that has libtorch, in this process's place.
[[noreturn]] void test_ranks(char** argv, int cpu_ranks) {
  if (cpu_ranks == 0 && config::count_visible_gpus() == 0)
    throw ConfigError(
        "doctor --gpus: no GPU is visible to this process",
        "check nvidia-smi and CUDA_VISIBLE_DEVICES; `tutti doctor --cpu_ranks 2` tests "
        "ranks on CPUs");
  const fs::path program = own_program().parent_path() / "tutti-doctor";
  ::execv(program.c_str(), argv);
  throw_errno("cannot run " + program.string(), errno, "build it with ./run build");
}

}  // namespace

int run_doctor(int argc, char** argv) {
  CLI::App app{"What this machine has, and what each parallel.env would need here", "tutti doctor"};
  bool json = false;
  bool quiet = false;
  bool gpus = false;
  int cpu_ranks = 0;
  app.add_flag(
      "--gpus", gpus,
      "start a rank per GPU of this node, check their sums and measure how fast they reach "
      "each other");
  app.add_option("--cpu_ranks,--cpu-ranks", cpu_ranks, "the same with so many ranks on CPUs")
      ->check(CLI::Range(1, 64));
  app.add_flag("--json", json, "as JSON");
  app.add_flag("--quiet", quiet, "print nothing");
  app.footer(example("tutti doctor\ntutti doctor --gpus"));
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  if (gpus || cpu_ranks > 0) test_ranks(argv, cpu_ranks);
  const BuildInfo& build = build_info();
  Json report = {{"versions",
                  {{"tutti", build.tutti},
                   {"commit", build.commit},
                   {"torch", build.torch},
                   {"cuda", build.cuda}}},
                 {"machine", machine()},
                 {"gpus", find_gpus()},
                 {"libraries", find_libraries()},
                 {"programs", find_tools()}};
  report["envs"] = find_envs(report["gpus"]);
  if (quiet) return 0;
  if (json)
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  else
    print_text(report);
  return 0;
}

}  // namespace tutti::apps
