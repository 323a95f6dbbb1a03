#include "tutti/parallel/worker/command_runner.h"

#include <csignal>
#include <mutex>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/parallel/runner.h"

namespace tutti::parallel {
namespace {

constexpr const char* kProvider = "tutti.CommandProvider";
constexpr const char* kRunner = "tutti.CommandRunner";

struct ItemList {
  std::vector<std::string> lines;  // empty: the index itself
};
struct CommandLine {
  std::vector<std::string> words;
};

class ItemCommandProvider : public EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(Env& env) const override {
    auto items = std::make_shared<ItemList>();
    const std::string file = params().value("items_file", "");
    if (!file.empty()) items->lines = read_items(file);
    env.put("items", items);
    env.put("command", std::make_shared<CommandLine>(
                           CommandLine{params().at("command").get<std::vector<std::string>>()}));
  }
};

class ItemCommandRunner : public BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const Env& env) const override {
    const auto& lines = env.get<ItemList>("items").lines;
    const std::string item = lines.empty() ? std::to_string(index) : lines.at(index);
    Command command;
    command.argv = expand_command(env.get<CommandLine>("command").words, item, index);
    command.capture_limit = std::size_t{2} << 30;
    command.own_group = false;  // so that the worker's end, however it comes, is its end too
    command.env["TUTTI_ITEM_INDEX"] = std::to_string(index);
    CommandResult result = run_command(command);
    // A scheduler that ends a job sends these to all of its processes, to the command perhaps a
    // moment before the worker. A shell tells of its command's end as 128 + the signal.
    for (const int signal : {SIGTERM, SIGKILL})
      if (result.signal == signal || result.exit_code == 128 + signal)
        throw CommandTerminated(result.describe());
    if (!result.ok()) throw TaskError(result.describe());
    if (result.truncated)
      throw TaskError("the output is larger than 2 GiB", "write it to a file and print the name");
    if (!result.out.empty() && result.out.back() == '\n') result.out.pop_back();
    return Json(std::move(result.out));
  }
};

std::string replace_all(std::string text, std::string_view what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

}  // namespace

std::vector<std::string> read_items(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  std::vector<std::string> lines = split(content, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (std::string& line : lines)
    if (!line.empty() && line.back() == '\r') line.pop_back();
  return lines;
}

std::vector<std::string> expand_command(const std::vector<std::string>& command,
                                        const std::string& item, std::uint64_t index) {
  const bool shell_line =
      command.size() == 1 && command[0].find_first_of(" \t\n") != std::string::npos;
  std::vector<std::string> words;
  for (const std::string& word : command)
    // The index first: an item may contain "{index}" itself.
    words.push_back(replace_all(replace_all(word, "{index}", std::to_string(index)), "{}",
                                shell_line ? shell_quote(item) : item));
  if (shell_line) return {"/bin/sh", "-c", words[0]};
  return words;
}

JobSpec command_job(const std::vector<std::string>& command,
                    const std::filesystem::path& items_file) {
  JobSpec job;
  job.provider = kProvider;
  job.runner = kRunner;
  job.params["command"] = command;
  job.params["items_file"] = items_file.string();
  return job;
}

void register_command_runner() {
  static std::once_flag once;
  std::call_once(once, [] {
    Registry::global().add_provider(
        kProvider, typeid(ItemCommandProvider),
        [](config::Node config, Json params) -> std::unique_ptr<EnvironmentProvider> {
          return std::make_unique<ItemCommandProvider>(std::move(config), std::move(params));
        });
    Registry::global().add_runner(
        kRunner, typeid(ItemCommandRunner),
        [](const EnvironmentProvider& provider) -> std::unique_ptr<BaseRunner> {
          return std::make_unique<ItemCommandRunner>(provider);
        });
  });
}

}  // namespace tutti::parallel
