#include "tutti/parallel/worker/command_runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <mutex>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/parallel/runner.h"
#include "tutti/parallel/worker/command_template.h"
#include "tutti/parallel/worker/item_file.h"
#include "tutti/parallel/worker/item_processes.h"

namespace tutti::parallel {
namespace {

constexpr const char* kProvider = "tutti.CommandProvider";
constexpr const char* kRunner = "tutti.CommandRunner";

constexpr std::size_t kMostOfStderr = 64 << 10;  // is kept of an item's

// What an item that went well wrote to stderr, onto ours; one write, so that words of several workers
// do not mix. What a failed item wrote is its story.
void pass_on(std::uint64_t index, std::string_view words) {
  if (words.size() > kMostOfStderr) words.remove_prefix(words.size() - kMostOfStderr);
  try {
    write_all(STDERR_FILENO,
              fmt::format("item {} wrote to stderr:\n{}{}", index, words,
                          words.ends_with('\n') ? "" : "\n"),
              "stderr");
  } catch (const IoError&) {  // a full disk is no fault of the item
  }
}

class ItemCommandProvider : public EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(Env& env) const override {
    const std::string file = params().value("items_file", "");
    if (!file.empty()) env.put("items", std::make_shared<ItemFile>(file));
    const bool shipped = params().contains("items");
    if (shipped) {
      auto items = std::make_shared<std::vector<std::string>>();
      for (const Json& item : params()["items"]) items->push_back(bytes_from_json(item));
      env.put("shipped", items);
    }
    env.put("children", std::make_shared<std::vector<pid_t>>(adopt_orphans()));  // of plugins
    std::vector<std::string> words;
    for (const Json& word : params().at("command")) words.push_back(bytes_from_json(word));
    env.put("command",
            std::make_shared<CommandTemplate>(std::move(words), file.empty() && !shipped));
  }
};

class ItemCommandRunner : public BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const Env& env) const override {
    const std::string number = std::to_string(index);
    const std::string_view item = env.has("items") ? env.get<ItemFile>("items")[index]
                                  : env.has("shipped")
                                      ? env.get<std::vector<std::string>>("shipped").at(index)
                                      : std::string_view(number);
    const auto& line = env.get<CommandTemplate>("command");
    Command command = line.for_item(item, index);
    command.capture_limit = std::size_t{2} << 30;
    command.own_group = false;  // so that the worker's end, however it comes, is its end too
    CommandResult result = run_command(command);
    end_children_except(env.get<std::vector<pid_t>>("children"));  // what it left behind
    if (!result.ok()) {
      result.command = line.describe(item, index);  // not as it was rewritten for the shell
      const std::string story = result.describe(kMostOfStderr);
      // A scheduler that ends a job sends these to all of its processes, to the command perhaps a
      // moment before the worker. A shell tells of its command's end as 128 + the signal.
      for (const int signal : {SIGTERM, SIGKILL})
        if (result.signal == signal || result.exit_code == 128 + signal)
          throw CommandTerminated(story);
      throw TaskError(story);
    }
    if (result.truncated)
      throw TaskError("the output is larger than 2 GiB", "write it to a file and print the name");
    if (!result.err.empty()) pass_on(index, result.err);
    if (!result.out.empty() && result.out.back() == '\n') result.out.pop_back();
    return is_utf8(result.out) ? Json(std::move(result.out)) : bytes_to_json(result.out);
  }
};

}  // namespace

JobSpec command_job(const std::vector<std::string>& command,
                    const std::filesystem::path& items_file, const Json& items) {
  register_command_runner();  // workers may be threads of this process
  JobSpec job;
  job.provider = kProvider;
  job.runner = kRunner;
  for (const std::string& word : command) job.params["command"].push_back(bytes_to_json(word));
  if (items.is_array())
    job.params["items"] = items;
  else
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
