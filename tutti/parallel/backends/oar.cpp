// OAR: oarsub -S reads the #OAR lines of a script file; oarstat -J for states.
#include "tutti/parallel/backends/oar.h"

#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"

namespace tutti::parallel {

using namespace std::chrono_literals;

std::vector<std::string> parse_oarsub(std::string_view out, int num_jobs) {
  std::vector<std::string> ids;
  for (const std::string& line : split(out, '\n')) {
    const std::string_view word = trim(line);
    if (!word.starts_with("OAR_JOB_ID=")) continue;
    const std::string id(word.substr(11));
    if (!id.empty() && id.find_first_not_of("0123456789") == std::string::npos) ids.push_back(id);
  }
  return static_cast<int>(ids.size()) == num_jobs ? ids : std::vector<std::string>{};
}

std::map<std::string, QueueState> parse_oarstat(std::string_view out) {
  std::map<std::string, QueueState> states;
  const auto begin = out.find('{');
  if (begin == std::string_view::npos) return states;
  const auto text = [](const Json& job, const char* key) {
    if (!job.contains(key) || job[key].is_null()) return std::string();
    return job[key].is_string() ? job[key].get<std::string>() : job[key].dump();
  };
  const Json answer = parse_json(out.substr(begin), "oarstat");
  for (const auto& [id, job] : answer.items()) {
    const std::string state = text(job, "state");
    const std::string message = text(job, "message");
    QueueState result;
    if (state == "Waiting" || state == "Hold" || state == "toLaunch" || state == "Launching" ||
        state == "toAckReservation")
      result = {.phase = JobPhase::kPending,
                .reason = message.empty() ? state : state + ": " + message};
    else if (state == "Running" || state == "Finishing" || state == "Suspended" ||
             state == "Resuming")
      result = {.phase = JobPhase::kRunning, .reason = state == "Running" ? "" : state};
    else if (state == "Terminated") {
      // "768 (3,0,0)": wait's status, and in brackets exit code, signal, core
      const std::string status = text(job, "exit_code");
      const auto bracket = status.find('(');
      const std::string code = bracket == std::string::npos
                                   ? status
                                   : status.substr(bracket + 1, status.find(',') - bracket - 1);
      if (code.empty() || code == "0")
        result = {.phase = JobPhase::kEnded};
      else
        result = {.phase = JobPhase::kFailed, .reason = "exit code " + code};
    } else {  // Error, toError: deleted, killed at the walltime, node lost
      result = {.phase = JobPhase::kFailed,
                .reason = message.empty() ? state : state + ": " + message,
                .preempted = true};
    }
    states[id] = result;
  }
  return states;
}

namespace {

class Oar final : public Dialect {
 public:
  SchedulerKind kind() const override { return SchedulerKind::kOar; }
  int max_array() const override { return 200; }

  SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                      const Submission& submission) const override {
    const bool array = submission.num_jobs > 1;
    const std::string log =
        log_folder_text(options, submission) + "/" + options.job_name + "-%jobid%";
    std::vector<Directive> directives = {{{"-n", "--name"}, "-n " + options.job_name}};
    if (options.queue) directives.push_back({{"-q", "--queue"}, "-q " + *options.queue});
    if (options.project) directives.push_back({{"--project"}, "--project " + *options.project});
    // One -l line: a second would mean a moldable job.
    directives.push_back(
        {{"--resource", "walltime", "resource_spec"},
         fmt::format("-l {},walltime={}",
                     options.resource_spec.value_or(fmt::format("/nodes=1/core={}", options.cores)),
                     format_walltime(kind(), *options.walltime, options.walltime_s))});
    directives.push_back({{"-O", "--stdout"}, "-O " + directive_path(log + ".out")});
    directives.push_back({{"-E", "--stderr"}, "-E " + directive_path(log + ".err")});
    if (array) directives.push_back({{"--array"}, fmt::format("--array {}", submission.num_jobs)});
    // OAR keeps only the last -p: conditions of the user's are joined with ours. It takes the rest
    // of the line as it is and hands it to its database, where quotes around it are an error.
    JobQueueOptions adjusted = options;
    std::vector<std::string> conditions;
    std::erase_if(adjusted.extra_directives, [&](const std::string& extra) {
      if (directive_name(extra) != "-p") return false;
      std::string_view theirs = trim(std::string_view(extra).substr(2));
      while (theirs.size() > 1 && (theirs.front() == '"' || theirs.front() == '\'') &&
             theirs.back() == theirs.front())
        theirs = theirs.substr(1, theirs.size() - 2);
      conditions.emplace_back(theirs);
      return true;
    });
    if (options.memory_per_core_property_name &&
        *options.memory_per_core_property_name != "not_applicable")
      conditions.push_back(fmt::format(
          "{}>={}", *options.memory_per_core_property_name,
          ceil_div(options.memory.count, static_cast<std::uint64_t>(options.cores) << 20)));
    if (conditions.size() == 1)
      directives.push_back({{"-p", "--property"}, "-p " + conditions[0]});
    else if (conditions.size() > 1)
      directives.push_back({{"-p", "--property"}, "-p (" + join(conditions, ") AND (") + ")"});
    const JobShell shell{.job_id = "${OAR_JOB_ID:-}",
                         .task_index = array ? "(OAR_ARRAY_INDEX - 1)" : "0"};
    SubmissionText out =
        shell_script(adjusted, "#OAR", directives,
                     worker_lines(options, launch, shell, submission.first_worker_id));
    out.submit = {.argv = {"oarsub", "-S", script_path(submission)}, .timeout = 60s};
    out.submit_line = out.submit.describe();
    return out;
  }

  std::vector<std::string> parse_submit(const CommandResult& result, int num_jobs) const override {
    return parse_oarsub(result.out, num_jobs);
  }

  std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                          CommandRunner& runner) const override {
    std::vector<std::string> argv = {"oarstat", "-J", "-f"};
    for (const std::string& id : ids) argv.insert(argv.end(), {"-j", id});
    const CommandResult answer = ask(runner, argv);
    if (!answer.ok()) throw SchedulerError(answer.describe());
    return parse_oarstat(answer.out);
  }

  std::vector<std::string> cancel_words(const JobQueueOptions&) const override {
    return {"oardel"};
  }
};

}  // namespace

std::unique_ptr<Dialect> make_oar() { return std::make_unique<Oar>(); }

}  // namespace tutti::parallel
