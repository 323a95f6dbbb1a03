// PBS: qsub with #PBS directives, qstat -x -f for states, arrays with -J.
#include "tutti/parallel/backends/pbs.h"

#include <fmt/format.h>

#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {

using namespace std::chrono_literals;

SubmissionText pbs_script(SchedulerKind kind, const JobQueueOptions& options,
                          const WorkerLaunch& launch, const Submission& submission) {
  const bool array = submission.num_jobs > 1;
  const std::string logs = log_folder_text(options, submission) + "/";
  std::vector<Directive> directives = {{{"-N"}, "-N " + options.job_name}};
  if (options.queue) directives.push_back({{"-q"}, "-q " + *options.queue});
  const char* inherited = std::getenv("PBS_ACCOUNT");  // dask-jobqueue reads it too
  if (options.account || inherited != nullptr)
    directives.push_back(
        {{"-A"}, "-A " + options.account.value_or(inherited == nullptr ? "" : inherited)});
  const std::string resources = options.resource_spec.value_or(
      fmt::format("select=1:ncpus={}:mem={}", options.cores, pbs_memory(options.memory.count)));
  directives.push_back(
      {{resources.substr(0, resources.find('=')), "resource_spec"}, "-l " + resources});
  directives.push_back(
      {{"walltime"},
       "-l walltime=" + format_walltime(kind, *options.walltime, options.walltime_s)});
  directives.push_back({{"-e"}, "-e " + directive_path(logs)});
  directives.push_back({{"-o"}, "-o " + directive_path(logs)});
  if (options.export_keys) directives.push_back({{"-v"}, std::string("-v ") + kConnectVariable});
  if (array) directives.push_back({{"-J"}, fmt::format("-J 0-{}", submission.num_jobs - 1)});
  const JobShell shell{
      .job_id = "${PBS_JOBID:-}",
      .task_index = array ? "PBS_ARRAY_INDEX" : "0",
      .work_folder = "\"${PBS_O_WORKDIR:-.}\""};  // PBS starts jobs in the home folder
  return shell_script(options, "#PBS", directives,
                      worker_lines(options, launch, shell, submission.first_worker_id));
}

std::vector<std::string> parse_qsub(std::string_view out, int num_jobs) {
  std::string id;
  for (const std::string& line : split(out, '\n')) {
    const std::string word(trim(line));
    const auto digits = word.find_first_not_of("0123456789");
    if (word.empty() || digits == 0 || word.find_first_of(" \t") != std::string::npos) continue;
    const std::string rest = digits == std::string::npos ? "" : word.substr(digits);
    if (rest.empty() || rest[0] == '.' || rest.starts_with("[]")) id = word;
  }
  if (id.empty()) return {};
  if (num_jobs == 1) return {id};
  const auto brackets = id.find("[]");
  if (brackets == std::string::npos) return {};
  std::vector<std::string> ids;
  for (int i = 0; i < num_jobs; ++i)
    ids.push_back(fmt::format("{}[{}]{}", id.substr(0, brackets), i, id.substr(brackets + 2)));
  return ids;
}

QueueState pbs_state(std::string_view state, std::string_view exit_status,
                     std::string_view comment) {
  const std::string words(trim(comment));
  const char letter = state.empty() ? '?' : state[0];
  switch (letter) {
    case 'Q':
    case 'H':
    case 'W':
    case 'T':
    case 'M':
      return {JobPhase::kPending, words.empty() ? (letter == 'H' ? "held" : "queued") : words,
              false};
    case 'R':
    case 'E':
    case 'S':
    case 'U':
    case 'B':
      return {JobPhase::kRunning, letter == 'R' ? "" : std::string("state ") + letter, false};
    default:
      break;
  }
  // C (Torque), F (PBS Pro), X (an array task): over. 271 = 256 + SIGTERM: ended by qdel or the
  // walltime.
  if (exit_status.empty())
    return {JobPhase::kFailed, words.empty() ? "ended without an exit status" : words, true};
  if (exit_status == "0") return {JobPhase::kEnded, "", false};
  int code = 0;
  try {
    code = std::stoi(std::string(exit_status));
  } catch (const std::exception&) {
    return {JobPhase::kFailed, fmt::format("exit status '{}'", exit_status), false};
  }
  const bool by_scheduler = code < 0 || code == 271 || code == 265 || code == 143 || code == 137;
  return {JobPhase::kFailed,
          words.empty() ? fmt::format("exit code {}", code)
                        : fmt::format("exit code {}: {}", code, words),
          by_scheduler};
}

std::map<std::string, QueueState> parse_qstat_json(std::string_view out) {
  std::map<std::string, QueueState> states;
  const auto begin = out.find('{');
  if (begin == std::string_view::npos) return states;
  const Json answer = parse_json(out.substr(begin), "qstat");
  if (!answer.contains("Jobs")) return states;
  const auto text = [](const Json& job, const char* key) {
    if (!job.contains(key)) return std::string();
    return job[key].is_string() ? job[key].get<std::string>() : job[key].dump();
  };
  for (const auto& [id, job] : answer["Jobs"].items())
    states[id] = pbs_state(text(job, "job_state"), text(job, "Exit_status"), text(job, "comment"));
  return states;
}

std::map<std::string, QueueState> parse_qstat_full(std::string_view out) {
  std::map<std::string, QueueState> states;
  std::string id;
  std::map<std::string, std::string> values;
  std::string last_key;
  const auto finish = [&] {
    if (!id.empty() && values.contains("job_state"))
      states[id] = pbs_state(values["job_state"], values["exit_status"], values["comment"]);
    id.clear();
    values.clear();
  };
  for (const std::string& line : split(out, '\n')) {
    if (line.starts_with("Job Id:")) {
      finish();
      id = trim(std::string_view(line).substr(7));
    } else if (line.starts_with("\t") && !last_key.empty()) {
      values[last_key] += std::string(trim(line));  // long values are folded
    } else if (const auto equals = line.find(" = "); equals != std::string::npos) {
      last_key = trim(std::string_view(line).substr(0, equals));
      if (last_key == "Exit_status") last_key = "exit_status";
      values[last_key] = line.substr(equals + 3);
    }
  }
  finish();
  return states;
}

namespace {

class Pbs final : public Dialect {
 public:
  SchedulerKind kind() const override { return SchedulerKind::kPbs; }
  int max_array() const override { return 500; }

  SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                      const Submission& submission) const override {
    SubmissionText out = pbs_script(kind(), options, launch, submission);
    out.submit = {.argv = {"qsub", script_path(submission)}, .timeout = 60s};
    out.submit_line = out.submit.describe();
    return out;
  }

  std::vector<std::string> parse_submit(const CommandResult& result, int num_jobs) const override {
    return parse_qsub(result.out, num_jobs);
  }

  std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                          CommandRunner& runner) const override {
    std::vector<std::string> argv = {"qstat", "-x", "-f", "-F", "json"};
    argv.insert(argv.end(), ids.begin(), ids.end());
    CommandResult answer = ask(runner, argv);
    std::map<std::string, QueueState> states;
    if (answer.out.find('{') != std::string::npos) {
      try {
        return parse_qstat_json(answer.out);
      } catch (const DataError&) {
        // Known: a quote in a job's variables breaks PBS's JSON. The plain form has the same facts.
      }
    }
    argv = {"qstat", "-f"};  // Torque knows neither -x nor JSON
    argv.insert(argv.end(), ids.begin(), ids.end());
    answer = ask(runner, argv);
    states = parse_qstat_full(answer.out);
    // qstat fails when one of the ids is gone but still answers for the others.
    if (states.empty() && !answer.ok() && answer.err.find("Unknown Job") == std::string::npos &&
        answer.err.find("has finished") == std::string::npos)
      throw SchedulerError(answer.describe());
    return states;
  }

  std::vector<std::string> cancel_words(const JobQueueOptions&) const override { return {"qdel"}; }

  std::filesystem::path log_path(const JobQueueOptions& options, const Submission& submission,
                                 const std::string& job_id) const override {
    // <name>.e<number>, and for a task of an array <name>.e<number>.<index>
    const auto bracket = job_id.find('[');
    std::string suffix = job_id.substr(0, job_id.find_first_of("[."));
    if (bracket != std::string::npos)
      suffix += "." + job_id.substr(bracket + 1, job_id.find(']') - bracket - 1);
    return log_folder_text(options, submission) + "/" + options.job_name + ".e" + suffix;
  }
};

}  // namespace

std::unique_ptr<Dialect> make_pbs() { return std::make_unique<Pbs>(); }

}  // namespace tutti::parallel
