// Moab: PBS's script through msub; one job at a time, checkjob for states.
#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/pbs.h"

namespace tutti::parallel {

using namespace std::chrono_literals;

std::string parse_msub(std::string_view out) {
  std::string id;
  for (const std::string& line : split(out, '\n')) {
    const std::string word(trim(line));
    const std::string number = word.starts_with("Moab.") ? word.substr(5) : word;
    if (!number.empty() && number.find_first_not_of("0123456789") == std::string::npos) id = word;
  }
  return id;
}

QueueState parse_checkjob(std::string_view out) {
  std::string state;
  std::string code;
  std::string reason;
  for (const std::string& line : split(out, '\n')) {
    const std::string_view text = trim(line);
    const auto after = [&](std::string_view label) {
      return std::string(trim(text.substr(label.size())));
    };
    if (text.starts_with("State:")) state = split_words(after("State:") + " ?")[0];
    if (text.starts_with("Completion Code:"))
      code = split_words(after("Completion Code:") + " ?")[0];
    if (text.starts_with("BLOCK MSG:")) reason = after("BLOCK MSG:");
    if (text.starts_with("NOTE:") && reason.empty()) reason = after("NOTE:");
    if (text.starts_with("Holds:") && reason.empty()) reason = "held: " + after("Holds:");
  }
  if (state == "Idle" || state == "Hold" || state == "Deferred" || state == "BatchHold" ||
      state == "UserHold" || state == "SystemHold" || state == "NotQueued" || state == "Migrated" ||
      state == "Staging")
    return {JobPhase::kPending, reason.empty() ? state : reason, false};
  if (state == "Running" || state == "Starting" || state == "Suspended")
    return {JobPhase::kRunning, state == "Running" ? "" : state, false};
  if (state == "Completed" && (code == "0" || code.empty())) return {JobPhase::kEnded, "", false};
  if (state == "Removed" || state == "Vacated" || code == "CNCLD" || code.starts_with("CNCLD"))
    return {JobPhase::kFailed, reason.empty() ? state : state + ": " + reason, true};
  return {JobPhase::kFailed,
          fmt::format("{}{}", state.empty() ? "unknown state" : state,
                      code.empty() ? "" : ", completion code " + code),
          false};
}

namespace {

class Moab final : public Dialect {
 public:
  SchedulerKind kind() const override { return SchedulerKind::kMoab; }

  SubmissionText text(const JobQueueOptions& options, const WorkerLaunch& launch,
                      const Submission& submission) const override {
    SubmissionText out = pbs_script(kind(), options, launch, submission);
    out.submit = {.argv = {"msub", script_path(submission)}, .timeout = 60s};
    out.submit_line = out.submit.describe();
    return out;
  }

  std::vector<std::string> parse_submit(const CommandResult& result, int) const override {
    const std::string id = parse_msub(result.out);
    return id.empty() ? std::vector<std::string>{} : std::vector<std::string>{id};
  }

  std::map<std::string, QueueState> query(const std::vector<std::string>& ids,
                                          CommandRunner& runner) const override {
    std::map<std::string, QueueState> states;
    for (const std::string& id : ids) {
      const CommandResult answer = ask(runner, {"checkjob", id});
      const std::string words = answer.out + answer.err;
      if (answer.ok())
        states[id] = parse_checkjob(answer.out);
      else if (words.find("cannot locate job") == std::string::npos &&
               words.find("invalid job") == std::string::npos)
        throw SchedulerError(answer.describe());
    }
    return states;
  }

  std::vector<std::string> cancel_words(const JobQueueOptions&) const override {
    return {"canceljob"};
  }

  std::filesystem::path log_path(const JobQueueOptions& options, const Submission& submission,
                                 const std::string& job_id) const override {
    const std::string number = job_id.starts_with("Moab.") ? job_id.substr(5) : job_id;
    return log_folder_text(options, submission) + "/" + options.job_name + ".e" + number;
  }
};

}  // namespace

std::unique_ptr<Dialect> make_moab() { return std::make_unique<Moab>(); }

}  // namespace tutti::parallel
