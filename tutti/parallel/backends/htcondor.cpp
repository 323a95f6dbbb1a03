// HTCondor: a submit description beside a plain shell script, `queue N` for several jobs.
#include "tutti/parallel/backends/htcondor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {
namespace {

using namespace std::chrono_literals;

bool same_key(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

std::string text_of(const Json& job, const char* key) {
  if (!job.contains(key)) return "";
  return job[key].is_string() ? job[key].get<std::string>() : job[key].dump();
}

}  // namespace

std::vector<std::string> parse_condor_submit(std::string_view out, int num_jobs) {
  for (const std::string& line : split(out, '\n')) {
    const auto words = split_words(line);
    if (words.empty() || (words.size() != 1 && !(words.size() == 3 && words[1] == "-"))) continue;
    const auto dot = words[0].find('.');
    const std::string cluster = words[0].substr(0, dot);
    if (dot == std::string::npos || cluster.empty() ||
        cluster.find_first_not_of("0123456789") != std::string::npos)
      continue;
    std::vector<std::string> ids;
    for (int i = 0; i < num_jobs; ++i) ids.push_back(fmt::format("{}.{}", cluster, i));
    return ids;
  }
  return {};
}

std::map<std::string, QueueState> parse_condor_json(std::string_view out) {
  std::map<std::string, QueueState> states;
  const auto begin = out.find('[');
  if (begin == std::string_view::npos) return states;
  for (const Json& job : parse_json(out.substr(begin), "HTCondor's answer")) {
    if (!job.contains("ClusterId") || !job.contains("ProcId") || !job.contains("JobStatus") ||
        !job["JobStatus"].is_number_integer())
      continue;
    QueueState state;
    switch (job["JobStatus"].get<int>()) {
      case 1:
        state = {.phase = JobPhase::kPending, .reason = "idle"};
        break;
      case 2:
      case 6:
        state = {.phase = JobPhase::kRunning};
        break;
      case 7:
        state = {.phase = JobPhase::kRunning, .reason = "suspended"};
        break;
      case 3:
        state = {.phase = JobPhase::kFailed,
                 .reason = "removed: " + text_of(job, "RemoveReason"),
                 .preempted = true};
        break;
      case 4: {
        const std::string code = text_of(job, "ExitCode");
        const std::string signal = text_of(job, "ExitSignal");
        if (code == "0")
          state = {.phase = JobPhase::kEnded};
        else
          state = {.phase = JobPhase::kFailed,
                   .reason = !code.empty() ? "exit code " + code : "killed by signal " + signal};
        break;
      }
      case 5:
        state = {.phase = JobPhase::kFailed,
                 .reason = "held: " + text_of(job, "HoldReason"),
                 .must_remove = true};
        break;
      default:
        state = {.phase = JobPhase::kFailed, .reason = "job status " + text_of(job, "JobStatus")};
        break;
    }
    states[text_of(job, "ClusterId") + "." + text_of(job, "ProcId")] = state;
  }
  return states;
}

std::pair<std::uint64_t, std::string> parse_condor_memory(std::string_view out) {
  std::pair<std::uint64_t, std::string> most;
  for (const std::string& line : split(out, '\n')) {
    const auto words = split_words(line);
    if (words.size() != 2 || words[1].size() > 18 ||
        words[1].find_first_not_of("0123456789") != std::string::npos)
      continue;
    most = std::max(most, {std::stoull(words[1]), words[0]});
  }
  return most;
}

namespace {

constexpr char kAttributes[] =
    "ClusterId,ProcId,JobStatus,HoldReason,RemoveReason,ExitCode,ExitSignal";

class HTCondor final : public Dialect {
 public:
  SchedulerKind kind() const override { return SchedulerKind::kHtcondor; }
  int max_array() const override { return 500; }

  SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                      const Submission& submission) const override {
    const std::string log =
        log_folder_text(options, submission) + "/" + options.job_name + "-$(ClusterId)";
    const std::string job_script = submission.stem + ".sh";
    std::vector<std::pair<std::string, std::string>> lines = {
        {"Universe", "vanilla"},
        {"batch_name", options.job_name},
        {"RequestCpus", std::to_string(options.cores)},
        {"RequestMemory", fmt::format("{}", ceil_div(options.memory.count, 1 << 20))},  // MiB
        {"RequestDisk", fmt::format("{}", ceil_div(options.disk->count, 1 << 10))},     // KiB
        {"InitialDir", std::filesystem::current_path().string()},
        {"Output", log + ".$(ProcId).out"},
        {"Error", log + ".$(ProcId).err"},
        {"Log", log + ".log"},
        {"Stream_Output", "True"},
        {"Stream_Error", "True"},
        {"Should_Transfer_Files", "IF_NEEDED"},
        {"When_To_Transfer_Output", "ON_EXIT"},
    };
    if (options.export_keys) lines.emplace_back("getenv", kConnectVariable);
    SubmissionText out;
    for (const std::string& skip : options.job_directives_skip)
      if (std::erase_if(lines, [&](const auto& line) { return same_key(line.first, skip); }) == 0)
        out.unmatched_skips.push_back(skip);
    for (const auto& extra : options.extra_assignments) {
      const auto found = std::find_if(lines.begin(), lines.end(), [&](const auto& line) {
        return same_key(line.first, extra.first);
      });
      if (found != lines.end())
        found->second = extra.second;
      else
        lines.push_back(extra);
    }
    out.script = options.shebang.value_or("#!/usr/bin/env condor_submit") + "\n\n";
    for (const auto& [key, value] : lines) out.script += fmt::format("{} = {}\n", key, value);
    // The script lies in the shared run folder; handing it to bash keeps the prologue free of
    // condor's quoting.
    out.script += fmt::format(
        "\nExecutable = /bin/bash\nTransfer_Executable = False\nArguments = \"'{}' "
        "$(ProcId)\"\n\nQueue {}\n",
        (submission.folder / job_script).string(), submission.num_jobs);
    out.script_suffix = ".sub";
    const JobShell shell{
        .job_id = fmt::format("${{_CONDOR_JOB_AD:+$(awk '/^ClusterId =/{{c=$3}} /^ProcId "
                              "=/{{p=$3}} END{{print c\".\"p}}' \"$_CONDOR_JOB_AD\")}}"),
        .task_index = submission.num_jobs > 1 ? "$1" : "0"};
    out.beside[job_script] =
        "#!/usr/bin/env bash\n" + worker_lines(options, launch, shell, submission.first_worker_id);
    out.submit = {.argv = {"condor_submit", "-terse"}, .timeout = 60s};
    out.submit.argv.insert(out.submit.argv.end(), options.submit_command_extra.begin(),
                           options.submit_command_extra.end());
    out.submit.argv.push_back(script_path(submission, ".sub"));
    out.submit_line = out.submit.describe();
    return out;
  }

  std::vector<std::string> parse_submit(const CommandResult& result, int num_jobs) const override {
    return parse_condor_submit(result.out, num_jobs);
  }

  std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                          CommandRunner& runner) const override {
    std::vector<std::string> argv = {"condor_q", "-json", "-attributes", kAttributes};
    argv.insert(argv.end(), ids.begin(), ids.end());
    const CommandResult queue = ask(runner, argv);
    if (!queue.ok()) throw SchedulerError(queue.describe());
    auto states = parse_condor_json(queue.out);
    for (const std::string& id : ids) {
      if (states.contains(id)) continue;
      const CommandResult history =
          ask(runner, {"condor_history", "-json", "-limit", "1", "-attributes", kAttributes, id});
      if (history.ok()) states.merge(parse_condor_json(history.out));
    }
    return states;
  }

  // condor_submit takes what no machine has, and the job stays idle.
  std::string impossible(const JobQueueOptions& options, CommandRunner& runner) const override {
    const auto is_memory = [](std::string_view key) { return same_key(key, "RequestMemory"); };
    for (const auto& [key, value] : options.extra_assignments)
      if (is_memory(key) || same_key(key, "Requirements")) return "";
    if (std::any_of(options.job_directives_skip.begin(), options.job_directives_skip.end(),
                    is_memory))
      return "";
    const CommandResult machines = ask(runner, {"condor_status", "-af", "Machine", "TotalMemory"});
    const auto [mib, name] = parse_condor_memory(machines.ok() ? machines.out : "");
    const auto wanted = ceil_div(options.memory.count, 1 << 20);
    if (mib == 0 || wanted <= mib) return "";
    return fmt::format(
        "no machine has {} MiB of memory; by `condor_status` the largest has {} ({})", wanted, mib,
        name);
  }

  std::vector<std::string> cancel_words(const JobQueueOptions& options) const override {
    std::vector<std::string> words = {"condor_rm"};
    words.insert(words.end(), options.cancel_command_extra.begin(),
                 options.cancel_command_extra.end());
    return words;
  }
};

}  // namespace

std::unique_ptr<Dialect> make_htcondor() { return std::make_unique<HTCondor>(); }

}  // namespace tutti::parallel
