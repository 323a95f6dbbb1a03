// Grid Engine: qsub -terse, qstat -xml for what is in the queue, qacct for what has left it.
#include "tutti/parallel/backends/sge.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {
namespace {

using namespace std::chrono_literals;

bool is_job_id(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The text of the first <tag> in `xml`; "" when there is none. qstat's output has no attributes or
// entities inside the tags we read.
std::string tag(std::string_view xml, const std::string& name) {
  const auto open = xml.find("<" + name + ">");
  if (open == std::string_view::npos) return "";
  const auto begin = open + name.size() + 2;
  const auto end = xml.find("</" + name + ">", begin);
  return end == std::string_view::npos ? "" : std::string(trim(xml.substr(begin, end - begin)));
}

QueueState sge_state(const std::string& state) {
  if (state.find('E') != std::string::npos)
    return {.phase = JobPhase::kFailed,
            .reason = "the job is in error state " + state,
            .must_remove = true};
  if (state.find("qw") != std::string::npos)
    return {.phase = JobPhase::kPending,
            .reason = state.find('h') != std::string::npos ? "held (" + state + ")" : state};
  return {.phase = JobPhase::kRunning, .reason = state == "r" ? "" : "state " + state};
}

}  // namespace

std::vector<std::string> parse_qsub_terse(std::string_view out, int num_jobs) {
  std::string id;
  for (const std::string& line : split(out, '\n')) {
    const std::string word(trim(line));
    if (is_job_id(word.substr(0, word.find('.'))) && word.find(' ') == std::string::npos)
      id = word.substr(0, word.find('.'));
  }
  if (id.empty()) return {};
  if (num_jobs == 1) return {id};
  std::vector<std::string> ids;
  for (int i = 1; i <= num_jobs; ++i) ids.push_back(fmt::format("{}.{}", id, i));
  return ids;
}

std::map<std::string, QueueState> parse_qstat_xml(std::string_view out) {
  std::map<std::string, QueueState> states;
  std::size_t at = 0;
  while ((at = out.find("<job_list", at)) != std::string_view::npos) {
    const auto end = out.find("</job_list>", at);
    if (end == std::string_view::npos) break;
    const std::string_view job = out.substr(at, end - at);
    at = end;
    const std::string id = tag(job, "JB_job_number");
    const std::string tasks = tag(job, "tasks");
    const QueueState state = sge_state(tag(job, "state"));
    if (id.empty()) continue;
    if (tasks.empty()) states[id] = state;
    for (const std::string& part : tasks.empty() ? std::vector<std::string>{} : split(tasks, ',')) {
      const auto dash = part.find('-');
      const std::string low = part.substr(0, dash);
      std::string high = dash == std::string::npos ? low : part.substr(dash + 1);
      high = high.substr(0, high.find(':'));
      if (!is_job_id(low) || !is_job_id(high)) continue;
      for (int task = std::stoi(low); task <= std::stoi(high); ++task)
        states[fmt::format("{}.{}", id, task)] = state;
    }
  }
  return states;
}

QueueState parse_qacct(std::string_view out) {
  std::string exit_status;
  std::string failed;
  for (const std::string& line : split(out, '\n')) {
    const auto words = split_words(line);
    if (words.size() < 2) continue;
    if (words[0] == "exit_status") exit_status = words[1];
    if (words[0] == "failed") failed = std::string(trim(std::string_view(line).substr(6)));
  }
  const bool clean = failed.empty() || split_words(failed)[0] == "0";
  if (clean && exit_status == "0") return {.phase = JobPhase::kEnded};
  if (clean) return {.phase = JobPhase::kFailed, .reason = "exit code " + exit_status};
  // "failed 100 : assumedly after job", 37 h_rt: ended by qdel, the walltime or a lost host.
  return {.phase = JobPhase::kFailed, .reason = "failed " + failed, .preempted = true};
}

std::string parse_scheduling_info(std::string_view out) {
  for (const std::string& line : split(out, '\n'))
    if (line.starts_with("scheduling info:")) return std::string(trim(line.substr(16)));
  return "";
}

LargestHost parse_qhost(std::string_view out) {
  LargestHost largest;
  std::size_t column = 0;
  for (const std::string& line : split(out, '\n')) {
    const auto words = split_words(line);
    const auto heading = std::find(words.begin(), words.end(), "MEMTOT");
    if (heading != words.end()) column = static_cast<std::size_t>(heading - words.begin());
    if (column == 0 || words.size() <= column || heading != words.end()) continue;
    const std::uint64_t bytes = parse_bytes(words[column] + "iB").value_or(0);  // "23.5G": 1024^3
    if (bytes > largest.bytes) largest = {bytes, words[0], words[column]};
  }
  return largest;
}

namespace {

class Sge final : public Dialect {
 public:
  SchedulerKind kind() const override { return SchedulerKind::kSge; }
  int max_array() const override { return 500; }

  SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                      const Submission& submission) const override {
    const bool array = submission.num_jobs > 1;
    const std::string logs = log_folder_text(options, submission) + "/";
    std::vector<Directive> directives = {{{"-N"}, "-N " + options.job_name}};
    if (options.queue) directives.push_back({{"-q"}, "-q " + *options.queue});
    if (options.project) directives.push_back({{"-P"}, "-P " + *options.project});
    if (options.cores > 1)
      directives.push_back(
          {{"-pe"}, fmt::format("-pe {} {}", options.parallel_environment, options.cores)});
    if (options.resource_spec)
      directives.push_back({{"resource_spec"}, "-l " + *options.resource_spec});
    else if (!options.memory_resource.empty())  // Grid Engine multiplies by the slots of the job
      directives.push_back(
          {{options.memory_resource},
           fmt::format(
               "-l {}={}M", options.memory_resource,
               ceil_div(ceil_div(options.memory.count, static_cast<std::uint64_t>(options.cores)),
                        1 << 20))});
    directives.push_back(
        {{"h_rt"}, "-l h_rt=" + format_walltime(kind(), *options.walltime, options.walltime_s)});
    directives.push_back({{"-e"}, "-e " + directive_path(logs)});
    directives.push_back({{"-o"}, "-o " + directive_path(logs)});
    directives.push_back({{"-cwd"}, "-cwd"});
    directives.push_back({{"-j"}, "-j y"});
    directives.push_back(
        {{"-S"},
         "-S /bin/bash"});  // else the queue's shell reads the script, whatever its first line says
    if (options.export_keys) directives.push_back({{"-v"}, std::string("-v ") + kConnectVariable});
    if (array) directives.push_back({{"-t"}, fmt::format("-t 1-{}", submission.num_jobs)});
    const JobShell shell{.job_id = array ? "${JOB_ID}.${SGE_TASK_ID}" : "${JOB_ID:-}",
                         .task_index = array ? "(SGE_TASK_ID - 1)" : "0"};
    SubmissionText out =
        shell_script(options, "#$", directives,
                     worker_lines(options, launch, shell, submission.first_worker_id));
    out.submit = {.argv = {"qsub", "-terse", script_path(submission)}, .timeout = 60s};
    out.submit_line = out.submit.describe();
    return out;
  }

  std::vector<std::string> parse_submit(const CommandResult& result, int num_jobs) const override {
    return parse_qsub_terse(result.out, num_jobs);
  }

  std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                          CommandRunner& runner) const override {
    const passwd* user = ::getpwuid(::getuid());
    const CommandResult queue =
        ask(runner, {"qstat", "-xml", "-g", "d", "-u", user != nullptr ? user->pw_name : "*"});
    if (!queue.ok()) throw SchedulerError(queue.describe());
    auto states = parse_qstat_xml(queue.out);
    explain_waiting(ids, states, runner);
    for (const std::string& id : ids) {
      if (states.contains(id)) continue;
      std::vector<std::string> argv = {"qacct", "-j", id.substr(0, id.find('.'))};
      if (const auto dot = id.find('.'); dot != std::string::npos)
        argv.insert(argv.end(), {"-t", id.substr(dot + 1)});
      const CommandResult account = ask(runner, argv);
      if (account.ok() && account.out.find("exit_status") != std::string::npos)
        states[id] = parse_qacct(account.out);
    }
    return states;
  }

  // qsub takes what no host has, and the job waits for ever. (`qsub -w e` is no help: it knows
  // nothing of mem_free and the like, and refuses what fits.)
  std::string impossible(const JobQueueOptions& options, CommandRunner& runner) const override {
    if (options.resource_spec || options.memory_resource.empty()) return "";
    const CommandResult hosts = ask(runner, {"qhost"});
    const LargestHost largest = hosts.ok() ? parse_qhost(hosts.out) : LargestHost{};
    // qhost rounds to a few digits.
    if (largest.bytes == 0 || options.memory.count <= largest.bytes + largest.bytes / 20) return "";
    return fmt::format("no host has {} of memory; by `qhost` the largest has {} ({})",
                       format_bytes(options.memory.count), largest.memory, largest.name);
  }

  std::vector<std::string> cancel_words(const JobQueueOptions&) const override { return {"qdel"}; }

  std::filesystem::path log_path(const JobQueueOptions& options, const Submission& submission,
                                 const std::string& job_id) const override {
    return log_folder_text(options, submission) + "/" + options.job_name + ".o" + job_id;
  }

 private:
  // "qw" says that it waits; why is told one job at a time, so it is asked for one of ours.
  static void explain_waiting(const std::vector<std::string>& ids,
                              std::map<std::string, QueueState>& states, CommandRunner& runner) {
    const auto waits = [&](const std::string& id) {
      const auto found = states.find(id);
      return found != states.end() && found->second.phase == JobPhase::kPending;
    };
    const auto first = std::find_if(ids.begin(), ids.end(), waits);
    if (first == ids.end()) return;
    const std::string job = first->substr(0, first->find('.'));
    const CommandResult answer = ask(runner, {"qstat", "-j", job});
    const std::string why = answer.ok() ? parse_scheduling_info(answer.out) : "";
    if (why.empty()) return;
    for (const std::string& id : ids)
      if (waits(id) && id.substr(0, id.find('.')) == job) states[id].reason += ": " + why;
  }
};

}  // namespace

std::unique_ptr<Dialect> make_sge() { return std::make_unique<Sge>(); }

}  // namespace tutti::parallel
