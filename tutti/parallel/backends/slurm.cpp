// Slurm: sbatch --parsable, job arrays, squeue first and sacct or scontrol for what has left the
// queue.
#include "tutti/parallel/backends/slurm.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {
namespace {

using namespace std::chrono_literals;

bool is_job_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

QueueState slurm_state(std::string_view state, std::string_view reason) {
  // "CANCELLED by 1000", "CANCELLED+": the first word without its mark counts.
  std::string word(trim(state));
  word = word.substr(0, word.find_first_of(" +"));
  std::string why(trim(reason));
  if (why == "None" || why == "(null)") why.clear();
  const auto words = [&](bool with_state) {
    return with_state ? (why.empty() ? word : word + ": " + why) : (why.empty() ? word : why);
  };
  static const char* const kWaiting[] = {"PENDING",      "CONFIGURING",  "REQUEUED",
                                         "REQUEUE_FED",  "REQUEUE_HOLD", "SPECIAL_EXIT",
                                         "RESV_DEL_HOLD"};
  static const char* const kAtWork[] = {"RUNNING",   "COMPLETING", "SUSPENDED", "STOPPED",
                                        "SIGNALING", "STAGE_OUT",  "RESIZING"};
  static const char* const kNotTheWorkersFault[] = {
      "PREEMPTED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "CANCELLED", "REVOKED"};
  const auto in = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), word) != std::end(list);
  };
  if (in(kWaiting)) {
    // Accepted by sbatch, but no waiting will help.
    static const char* const kHopeless[] = {"can't use this partition",
                                            "AccountNotAllowed",
                                            "InvalidAccount",
                                            "InvalidQOS",
                                            "QOSNotAllowed",
                                            "BadConstraints",
                                            "PartitionTimeLimit",
                                            "PartitionNodeLimit"};
    // "launch failed requeued held": the node could not start it, and nobody but us will let it go.
    std::string held = why;  // scontrol has lines for blanks
    std::replace(held.begin(), held.end(), '_', ' ');
    if (held.find("requeued held") != std::string::npos)
      return {JobPhase::kFailed, held, false, true};
    for (const char* hopeless : kHopeless)
      if (why.find(hopeless) != std::string::npos)
        return {JobPhase::kFailed, words(false), false, true};
    return {JobPhase::kPending, words(false), false};
  }
  if (in(kAtWork)) return {JobPhase::kRunning, word == "RUNNING" ? "" : word, false};
  if (word == "COMPLETED") return {JobPhase::kEnded, "", false};
  return {JobPhase::kFailed, words(true), in(kNotTheWorkersFault)};
}

std::vector<std::string> parse_sbatch(std::string_view out, int num_jobs) {
  // --parsable: "123" or "123;cluster", alone on its line; banners of a site may surround it.
  std::string id;
  for (const std::string& line : split(out, '\n')) {
    const auto word = trim(line);
    const auto number = word.substr(0, word.find(';'));
    const bool clean = word.find(' ') == std::string_view::npos;
    if (clean && is_job_number(number)) id = number;
  }
  if (id.empty()) return {};
  if (num_jobs == 1) return {id};
  std::vector<std::string> ids;
  for (int i = 0; i < num_jobs; ++i) ids.push_back(fmt::format("{}_{}", id, i));
  return ids;
}

std::vector<std::pair<int, int>> parse_task_ranges(std::string_view text) {
  std::vector<std::pair<int, int>> out;
  for (const std::string& part : split(text.substr(0, text.find('%')), ',')) {
    const auto dash = part.find('-');
    const std::string low = part.substr(0, dash);
    const std::string high = dash == std::string::npos ? low : part.substr(dash + 1);
    if (!is_job_number(low) || !is_job_number(high) || low.size() > 9 || high.size() > 9) continue;
    out.emplace_back(std::stoi(low), std::stoi(high));
  }
  return out;
}

std::map<std::string, QueueState> parse_squeue(std::string_view out) {
  std::map<std::string, QueueState> states;
  for (const std::string& line : split(out, '\n')) {
    const auto fields = split(line, '|');
    if (fields.size() < 4) continue;  // a banner
    const std::string id(trim(fields[0]));
    if (id.empty() || !is_job_number(id.substr(0, id.find('_')))) continue;
    std::string reason = fields[3];
    for (std::size_t i = 4; i < fields.size(); ++i) reason += "|" + fields[i];
    QueueState state = slurm_state(fields[1], reason);
    state.node = trim(fields[2]);
    const auto bracket = id.find("_[");
    if (bracket == std::string::npos) {
      states[id] = state;
      continue;
    }
    // "123_[4-9%2]": tasks that wait together
    const std::string base = id.substr(0, bracket);
    std::string_view inside = std::string_view(id).substr(bracket + 2);
    inside = inside.substr(0, inside.find(']'));
    for (const auto& [low, high] : parse_task_ranges(inside))
      for (int task = low; task <= high; ++task)
        states.emplace(fmt::format("{}_{}", base, task), state);
  }
  return states;
}

std::map<std::string, QueueState> parse_sacct(std::string_view out) {
  // JobID|State|ExitCode; -X leaves the steps out, but older versions show them nonetheless.
  std::map<std::string, QueueState> states;
  for (const std::string& line : split(out, '\n')) {
    const auto fields = split(line, '|');
    if (fields.size() < 3 || fields[0].find('.') != std::string::npos || fields[0].empty())
      continue;
    std::string code =
        fields[2] == "0:0" ? "" : "exit code " + fields[2].substr(0, fields[2].find(':'));
    if (fields[2].ends_with(":9") || fields[2].ends_with(":15"))
      code = "signal " + fields[2].substr(fields[2].find(':') + 1);
    states[fields[0]] = slurm_state(fields[1], code);
  }
  return states;
}

std::map<std::string, QueueState> parse_scontrol(std::string_view out) {
  std::map<std::string, QueueState> states;
  for (const std::string& line : split(out, '\n')) {
    std::map<std::string, std::string> values;
    for (const std::string& word : split_words(line))
      if (const auto at = word.find('='); at != std::string::npos)
        values.emplace(word.substr(0, at), word.substr(at + 1));
    if (!values.contains("JobId") || !values.contains("JobState")) continue;
    const bool task = values.contains("ArrayJobId") && is_job_number(values["ArrayTaskId"]);
    std::string reason = values["Reason"];
    if (reason == "None" && values.contains("ExitCode") && values["ExitCode"] != "0:0")
      reason = "exit code " + values["ExitCode"].substr(0, values["ExitCode"].find(':'));
    states[task ? values["ArrayJobId"] + "_" + values["ArrayTaskId"] : values["JobId"]] =
        slurm_state(values["JobState"], reason);
  }
  return states;
}

namespace {

class Slurm final : public Dialect {
 public:
  SchedulerKind kind() const override { return SchedulerKind::kSlurm; }
  int max_array() const override { return 500; }  // MaxArraySize is 1001 unless a site changes it

  SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                      const Submission& submission) const override {
    const bool array = submission.num_jobs > 1;
    const std::string log =
        log_folder_text(options, submission) + "/" + options.job_name + (array ? "-%A_%a" : "-%j");
    std::vector<Directive> directives = {
        {{"-J", "--job-name"}, "-J " + options.job_name},
        {{"-e", "--error"}, "-e " + directive_path(log + ".err")},
        {{"-o", "--output"}, "-o " + directive_path(log + ".out")}};
    if (options.queue) directives.push_back({{"-p", "--partition"}, "-p " + *options.queue});
    if (options.account) directives.push_back({{"-A", "--account"}, "-A " + *options.account});
    directives.push_back({{"-n", "--ntasks", "--ntasks-per-node"}, "-n 1"});
    directives.push_back({{"-N", "--nodes"}, "-N 1"});
    directives.push_back(
        {{"-c", "--cpus-per-task", "--cpus-per-gpu"},
         fmt::format("--cpus-per-task={}", options.job_cpu.value_or(options.cores))});
    directives.push_back({{"--mem", "--mem-per-cpu", "--mem-per-gpu"},
                          "--mem=" + options.job_mem.value_or(slurm_memory(options.memory.count))});
    directives.push_back(
        {{"-t", "--time"}, "-t " + format_walltime(kind(), *options.walltime, options.walltime_s)});
    if (array)
      directives.push_back(
          {{"-a", "--array"}, fmt::format("--array=0-{}", submission.num_jobs - 1)});
    const JobShell shell{
        .job_id = array ? "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" : "${SLURM_JOB_ID:-}",
        .task_index = array ? "SLURM_ARRAY_TASK_ID" : "0",
        .end_time = "SLURM_JOB_END_TIME"};
    SubmissionText out =
        shell_script(options, "#SBATCH", directives,
                     worker_lines(options, launch, shell, submission.first_worker_id));
    out.submit = {.argv = {"sbatch", "--parsable"}, .timeout = 120s};
    const bool own_list =
        std::any_of(options.extra_directives.begin(), options.extra_directives.end(),
                    [](const std::string& line) {
                      return directive_name(line) == "--exclude" || directive_name(line) == "-x";
                    });
    if (!submission.avoid.empty() && !own_list)
      out.submit.argv.push_back("--exclude=" + join(submission.avoid, ","));
    out.submit.argv.push_back(script_path(submission));
    out.submit_line = out.submit.describe();
    return out;
  }

  std::vector<std::string> parse_submit(const CommandResult& result, int num_jobs) const override {
    return parse_sbatch(result.out, num_jobs);
  }

  std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                          CommandRunner& runner) const override {
    const CommandResult queue =
        ask(runner, {"squeue", "-h", "-r", "-t", "all", "-j", join(ids, ","), "-o", "%i|%T|%N|%r"});
    // One unknown id alone is an error to squeue; that answers the question too.
    if (!queue.ok() && queue.err.find("Invalid job id") == std::string::npos)
      throw SchedulerError(queue.describe());
    auto states = parse_squeue(queue.out);
    std::vector<std::string> missing;
    for (const std::string& id : ids)
      if (!states.contains(id)) missing.push_back(id);
    if (missing.empty()) return states;
    const CommandResult accounts = ask(runner, {"sacct", "-n", "-P", "-X", "-j", join(missing, ","),
                                                "-o", "JobID,State,ExitCode"});
    if (accounts.ok()) states.merge(parse_sacct(accounts.out));
    // A job that left both: the controller may still remember it. An array is asked for once, and
    // not more than a few: what is not asked now stays unknown, which is not dead.
    std::set<std::string> bases;
    for (const std::string& id : missing)
      if (!states.contains(id) && bases.size() < 5) bases.insert(id.substr(0, id.find('_')));
    for (const std::string& base : bases) {
      const CommandResult job = ask(runner, {"scontrol", "-o", "show", "job", base});
      if (job.ok()) states.merge(parse_scontrol(job.out));
    }
    return states;
  }

  std::optional<std::vector<FoundJob>> find(CommandRunner& runner) const override {
    const CommandResult queue =
        ask(runner, {"squeue", "-h", "-r", "-u", std::to_string(::getuid()), "-o", "%i|%o"});
    if (!queue.ok()) throw SchedulerError(queue.describe());
    std::vector<FoundJob> found;
    for (const std::string& line : split(queue.out, '\n')) {
      const auto bar = line.find('|');
      if (bar == std::string::npos) continue;
      found.push_back(
          {std::string(trim(line.substr(0, bar))), std::string(trim(line.substr(bar + 1)))});
    }
    return found;
  }

  std::vector<std::string> cancel_words(const JobQueueOptions&) const override {
    return {"scancel"};
  }

  // A node that stands still while it is told to begin a job says afterwards that it could not, and the controller
  // then puts the job back into the queue, held, though it was cancelled long ago.
  std::vector<Command> forbid_return(const std::vector<std::string>& ids) const override {
    std::map<std::string, std::string> arrays;  // "7": "7_0,2,5", all that one command takes
    for (const std::string& id : ids) {
      const auto line = id.find('_');
      const auto [entry, is_new] = arrays.emplace(id.substr(0, line), id);
      if (!is_new && line != std::string::npos) entry->second += "," + id.substr(line + 1);
    }
    std::vector<Command> commands;
    for (const auto& [base, tasks] : arrays)
      commands.push_back({.argv = {"scontrol", "update", "JobId=" + tasks, "Requeue=0"},
                          .env = {{"LC_ALL", "C"}},
                          .timeout = 10s});
    return commands;
  }
};

}  // namespace

std::unique_ptr<Dialect> make_slurm() { return std::make_unique<Slurm>(); }

}  // namespace tutti::parallel
