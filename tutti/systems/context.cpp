// Loading the configs of a run and letting the experiment's names flow between them.
#include <fmt/format.h>

#include "tutti/config/load.h"
#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/systems/stage.h"

namespace tutti::systems {
namespace {

using config::Node;

// Laid under every file, so that recipes need to say only what differs.
constexpr const char* kDefaults = R"(
recipe_dir: .
data_dir: ${recipe_dir}/data
exp_tag: ${self_name:}
exp_dir: ${recipe_dir}/exp/${exp_tag}
)";
constexpr const char* kTrainingDefaults =
    "stats_dir: ${recipe_dir}/exp/stats\nnum_device: 1\nnum_nodes: 1\n";
constexpr const char* kInferenceDefaults = "inference_dir: ${exp_dir}/${self_name:}\n";

Node set(const Node& root, const std::string& key, const Node& value) {
  auto copy = std::make_shared<config::Value>(*root.value());
  for (auto& [name, child] : copy->map) {
    if (name != key) continue;
    child = value.value();
    return Node(copy);
  }
  copy->map.emplace_back(key, value.value());
  return Node(copy);
}

struct Loaded {
  Node merged;
  config::LoadOptions options;
};

Loaded load_one(const std::vector<std::filesystem::path>& files, const std::string& defaults,
                config::Problems& problems) {
  Loaded loaded;
  if (files.empty()) return loaded;
  loaded.options = {.files = files};
  loaded.options.self_name = files[0].stem().string();
  const Node user = config::load_merged(loaded.options, problems);
  const Node base = config::parse_yaml(kDefaults + defaults, "defaults");
  loaded.merged = Node(config::merge(base.value(), user.value()));
  return loaded;
}

// "++a.b=c" -> "a.b"
std::string path_of(std::string text) {
  text.erase(0, text.find_first_not_of("+~"));
  return text.substr(0, text.find('='));
}

// An override belongs to every config that has its key; one that none has is new (or a slip) and
// goes to the first config given.
void apply_overrides(const std::vector<std::string>& overrides, const std::vector<Loaded*>& configs,
                     config::Problems& problems) {
  for (const auto& text : overrides) {
    std::vector<Loaded*> targets;
    for (Loaded* config : configs)
      if (config->merged.defined() && config->merged.find(path_of(text)).defined())
        targets.push_back(config);
    for (std::size_t i = 0; targets.empty() && i < configs.size(); ++i)
      if (configs[i]->merged.defined()) targets.push_back(configs[i]);
    for (Loaded* config : targets)
      config->merged = Node(config::apply_override(config->merged.value(), text, problems));
  }
}

Node finish(const Loaded& loaded, config::Problems& problems) {
  if (!loaded.merged.defined()) return {};
  return config::resolve(loaded.merged, loaded.options.resolvers, loaded.options.self_name,
                         problems);
}

// Copies `key` of a resolved config into one that comes later; says so when that changes what the
// file says.
void inherit(const Node& from, std::string_view key, std::string_view file_kind, Loaded& to) {
  if (!from.defined() || !to.merged.defined() || from[key].is_null()) return;
  const Node current = to.merged[key];
  const bool written_by_user =
      current.defined() && current.mark().file && *current.mark().file != "defaults";
  config::Problems ignored;  // the same ones are reported when the whole file is resolved
  const Node own = finish(to, ignored)[key];
  if (written_by_user && own.is_scalar() && own.raw() != from[key].raw())
    log::warning("{}: {} is '{}' there; the training config's '{}' is used", file_kind, key,
                 own.raw(), from[key].raw());
  to.merged = set(to.merged, std::string(key), from[key]);
}

}  // namespace

StageContext load_context(const ContextRequest& request) {
  config::Problems problems;
  Loaded training = load_one(request.training, kTrainingDefaults, problems);
  Loaded inference = load_one(request.inference, kInferenceDefaults, problems);
  Loaded metrics = load_one(request.metrics, kInferenceDefaults, problems);
  Loaded demo = load_one(request.demo, kInferenceDefaults, problems);
  apply_overrides(request.overrides, {&training, &inference, &metrics, &demo}, problems);
  problems.throw_if_any();

  StageContext context;
  context.request = request;
  context.training = finish(training, problems);
  for (const char* key : {"exp_tag", "exp_dir", "data_dir"}) {
    inherit(context.training, key, "inference config", inference);
    inherit(context.training, key, "metrics config", metrics);
    inherit(context.training, key, "demo config", demo);
  }
  context.inference = finish(inference, problems);
  for (const char* key : {"exp_tag", "exp_dir", "data_dir", "inference_dir"}) {
    inherit(context.inference, key, "metrics config", metrics);
    inherit(context.inference, key, "demo config", demo);
  }
  context.metrics = finish(metrics, problems);
  context.demo = finish(demo, problems);
  problems.throw_if_any();
  return context;
}

std::vector<std::string> stage_command(const std::string& stage, const ContextRequest& request) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tutti";
  std::vector<std::string> command = {program.string(), stage};
  const auto add = [&](const char* flag, const std::vector<std::filesystem::path>& files) {
    for (const auto& file : files) command.insert(command.end(), {flag, file.string()});
  };
  add("--training_config", request.training);
  add("--inference_config", request.inference);
  add("--metrics_config", request.metrics);
  add("--demo_config", request.demo);
  if (request.force) command.emplace_back("--force");
  for (const auto& override_text : request.overrides) command.push_back(override_text);
  return command;
}

}  // namespace tutti::systems
