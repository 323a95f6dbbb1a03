// LSF: bsub < script, bjobs -o with a delimiter. Units are the cluster's, powers of 1024.
#include "tutti/parallel/backends/lsf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using namespace std::chrono_literals;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

// Where LSF keeps its settings, in the order LSF itself looks.
std::string unit_of_this_cluster() {
  for (const char* variable : {"LSF_ENVDIR", "LSF_CONFDIR"}) {
    const char* folder = std::getenv(variable);
    std::error_code none;
    if (folder == nullptr ||
        !std::filesystem::exists(std::filesystem::path(folder) / "lsf.conf", none))
      continue;
    return parse_lsf_conf(read_file(std::filesystem::path(folder) / "lsf.conf"));
  }
  std::error_code none;
  return std::filesystem::exists("/etc/lsf.conf", none) ? parse_lsf_conf(read_file("/etc/lsf.conf"))
                                                        : "";
}

}  // namespace

std::string parse_lsf_conf(std::string_view text) {
  std::string unit;
  for (const std::string& line : split(text, '\n')) {
    std::string_view words = trim(line);
    if (!words.starts_with("LSF_UNIT_FOR_LIMITS")) continue;
    const auto equals = words.find('=');
    if (equals == std::string_view::npos) continue;
    std::string value = lower(trim(words.substr(equals + 1)));
    value.erase(std::remove(value.begin(), value.end(), '"'), value.end());
    if (!value.empty() && std::string_view("kmgtpe").find(value[0]) != std::string_view::npos)
      unit = std::string(1, value[0]) + "b";
  }
  return unit;
}

std::uint64_t lsf_memory(std::uint64_t num_bytes, std::string_view unit) {
  const auto power = std::string_view("kmgtpe").find(lower(unit).substr(0, 1));
  std::uint64_t divisor = 1024;
  for (std::size_t i = 0; power != std::string_view::npos && i < power; ++i) divisor *= 1024;
  return ceil_div(num_bytes, divisor);
}

std::vector<std::string> parse_bsub(std::string_view out, int num_jobs) {
  std::string id;
  for (const std::string& line : split(out, '\n')) {
    const std::string_view words = trim(line);
    if (!words.starts_with("Job <") || words.find("is submitted") == std::string_view::npos)
      continue;
    id = words.substr(5, words.find('>') - 5);
  }
  if (id.empty() || id.find_first_not_of("0123456789") != std::string::npos) return {};
  if (num_jobs == 1) return {id};
  std::vector<std::string> ids;
  for (int i = 1; i <= num_jobs; ++i) ids.push_back(fmt::format("{}[{}]", id, i));
  return ids;
}

std::map<std::string, QueueState> parse_bjobs(std::string_view out) {
  std::map<std::string, QueueState> states;
  for (const std::string& line : split(out, '\n')) {
    auto fields = split(line, '|');
    if (fields.size() < 6) continue;
    for (std::string& field : fields) {
      field = std::string(trim(field));
      if (field == "-") field.clear();
    }
    std::string id = fields[0];
    if (id.empty() || id.find_first_not_of("0123456789[]") != std::string::npos) continue;
    if (!fields[1].empty() && fields[1] != "0" && id.find('[') == std::string::npos)
      id += "[" + fields[1] + "]";
    const std::string& stat = fields[2];
    QueueState state;
    if (stat == "PEND" || stat == "PSUSP" || stat == "WAIT") {
      state = {.phase = JobPhase::kPending, .reason = fields[5].empty() ? stat : fields[5]};
    } else if (stat == "RUN" || stat == "PROV" || stat == "USUSP" || stat == "SSUSP" ||
               stat == "UNKWN") {
      state = {.phase = JobPhase::kRunning, .reason = stat == "RUN" ? "" : stat};
    } else if (stat == "DONE") {
      state = {.phase = JobPhase::kEnded};
    } else {  // EXIT, ZOMBI
      state = {.phase = JobPhase::kFailed, .reason = stat};
      if (!fields[3].empty()) state.reason = "exit code " + fields[3];
      if (!fields[4].empty()) state.reason += ": " + fields[4];
      for (const char* word : {"TERM_RUNLIMIT", "TERM_PREEMPT", "TERM_OWNER", "TERM_ADMIN",
                               "TERM_FORCE_OWNER", "TERM_REQUEUE", "TERM_DEADLINE", "TERM_WINDOW"})
        if (fields[4].find(word) != std::string::npos) state.preempted = true;
      if (stat == "ZOMBI") state.preempted = true;  // the host is out of reach
    }
    states[id] = state;
  }
  return states;
}

namespace {

class Lsf final : public Dialect {
 public:
  SchedulerKind kind() const override { return SchedulerKind::kLsf; }
  int max_array() const override {
    return 500;
  }  // MAX_JOB_ARRAY_SIZE is 1000 unless a site changes it

  SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                      const Submission& submission) const override {
    const bool array = submission.num_jobs > 1;
    const std::string log =
        log_folder_text(options, submission) + "/" + options.job_name + (array ? "-%J_%I" : "-%J");
    const int slots = options.ncpus.value_or(options.cores);
    const std::uint64_t memory = options.mem ? options.mem->count : options.memory.count;
    const std::string unit = options.lsf_units ? *options.lsf_units : unit_of_this_cluster();
    std::vector<Directive> directives = {
        {{"-J"},
         array ? fmt::format("-J \"{}[1-{}]\"", options.job_name, submission.num_jobs)
               : "-J " + options.job_name},
        {{"-e"}, "-e " + directive_path(log + ".err")},
        {{"-o"}, "-o " + directive_path(log + ".out")}};
    if (options.queue) directives.push_back({{"-q"}, "-q " + *options.queue});
    if (options.project) directives.push_back({{"-P"}, "-P \"" + *options.project + "\""});
    directives.push_back({{"-n"}, fmt::format("-n {}", slots)});
    if (slots > 1) directives.push_back({{"span"}, "-R \"span[hosts=1]\""});
    // Without LSF_UNIT_FOR_LIMITS, LSF reads limits in KB and reservations in MB.
    directives.push_back(
        {{"-M"}, fmt::format("-M {}", lsf_memory(memory, unit.empty() ? "kb" : unit))});
    directives.push_back(
        {{"rusage"},
         fmt::format("-R \"rusage[mem={}]\"", lsf_memory(memory, unit.empty() ? "mb" : unit))});
    directives.push_back(
        {{"-W"}, "-W " + format_walltime(kind(), *options.walltime, options.walltime_s)});
    for (const std::string& extra :
         options.extra_directives)  // an own rusage replaces ours; other -R add up
      if (directive_name(extra) == "-R" && extra.find("rusage") != std::string::npos)
        std::erase_if(directives, [](const Directive& d) { return d.keys[0] == "rusage"; });
    const JobShell shell{.job_id = array ? "${LSB_JOBID}[${LSB_JOBINDEX}]" : "${LSB_JOBID:-}",
                         .task_index = array ? "(LSB_JOBINDEX - 1)" : "0"};
    SubmissionText out =
        shell_script(options, "#BSUB", directives,
                     worker_lines(options, launch, shell, submission.first_worker_id));
    if (options.use_stdin) {
      out.submit = {.argv = {"bsub"}, .stdin_text = out.script, .timeout = 60s};
      out.submit_line = "bsub < " + shell_quote(script_path(submission));
    } else {
      out.submit = {.argv = {"bsub", script_path(submission)}, .timeout = 60s};
      out.submit_line = out.submit.describe();
    }
    return out;
  }

  std::vector<std::string> parse_submit(const CommandResult& result, int num_jobs) const override {
    return parse_bsub(result.out, num_jobs);
  }

  std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                          CommandRunner& runner) const override {
    std::vector<std::string> argv = {
        "bjobs", "-a", "-noheader", "-o",
        "jobid jobindex stat exit_code exit_reason pend_reason delimiter='|'"};
    argv.insert(argv.end(), ids.begin(), ids.end());
    const CommandResult answer = ask(runner, argv);
    auto states = parse_bjobs(answer.out);
    if (states.empty() && !answer.ok() && answer.err.find("is not found") == std::string::npos)
      throw SchedulerError(answer.describe());
    return states;
  }

  std::vector<std::string> cancel_words(const JobQueueOptions&) const override { return {"bkill"}; }

  std::filesystem::path log_path(const JobQueueOptions& options, const Submission& submission,
                                 const std::string& job_id) const override {
    std::string suffix = job_id;
    std::replace(suffix.begin(), suffix.end(), '[', '_');
    std::erase(suffix, ']');
    return log_folder_text(options, submission) + "/" + options.job_name + "-" + suffix + ".err";
  }
};

}  // namespace

std::unique_ptr<Dialect> make_lsf() { return std::make_unique<Lsf>(); }

}  // namespace tutti::parallel
