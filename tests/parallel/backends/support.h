// What the backend tests share: options from YAML text, and a scheduler played by a function.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/config/load.h"
#include "tutti/parallel/backends/cluster.h"
#include "tutti/parallel/backends/jobqueue.h"

namespace tutti::parallel {

inline JobQueueOptions options_from(SchedulerKind kind, const std::string& yaml) {
  config::Problems problems;
  JobQueueOptions options =
      parse_jobqueue_options(kind, config::parse_yaml(yaml, "test.yaml"), problems);
  EXPECT_TRUE(problems.empty()) << problems.describe();
  return options;
}

struct Checked {
  std::string problems;
  std::string warnings;
};

inline Checked check(const std::string& env, const std::string& options_yaml, int n_workers = 1) {
  const std::string count = n_workers > 1 ? fmt::format("n_workers: {}\n", n_workers) : "";
  const config::Node block =
      config::parse_yaml(count + "options:\n  " + options_yaml + "\n", "test.yaml");
  ParallelSettings settings;
  settings.env = env;
  settings.n_workers = n_workers;
  settings.options = block["options"];
  config::Problems problems;
  check_cluster(settings, block, problems);
  Checked out{problems.describe(), ""};
  for (const auto& warning : problems.warnings()) out.warnings += warning.describe() + "\n";
  return out;
}

inline WorkerLaunch example_launch() {
  return {.command = {"/opt/tutti/bin/tutti", "worker", "--run", "/shared/run"},
          .run_folder = "/shared/run",
          .env = {}};
}

// The header lines of a script: everything up to the first line of the body.
inline std::vector<std::string> header_of(const std::string& script, const std::string& prefix) {
  std::vector<std::string> out;
  std::size_t at = 0;
  while (at < script.size()) {
    const auto end = script.find('\n', at);
    const std::string line = script.substr(at, end - at);
    if (line.starts_with(prefix + " ")) out.push_back(line.substr(prefix.size() + 1));
    at = end == std::string::npos ? script.size() : end + 1;
  }
  return out;
}

// Answers commands as `answer` says and remembers them.
class PlayedScheduler final : public CommandRunner {
 public:
  explicit PlayedScheduler(std::function<CommandResult(const Command&)> answer)
      : answer_(std::move(answer)) {}
  CommandResult run(const Command& command) override {
    asked.push_back(command.describe());
    CommandResult result = answer_(command);
    result.command = command.describe();
    return result;
  }
  std::vector<std::string> asked;

 private:
  std::function<CommandResult(const Command&)> answer_;
};

inline CommandResult says(const std::string& out) {
  CommandResult result;
  result.exit_code = 0;
  result.out = out;
  return result;
}
inline CommandResult refuses(const std::string& err, int code = 1) {
  CommandResult result;
  result.exit_code = code;
  result.err = err;
  return result;
}

}  // namespace tutti::parallel
