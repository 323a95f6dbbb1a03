#include "tutti/trainer/optim/optimizer_settings.h"

#include <algorithm>
#include <utility>

#include "tutti/config/recipe_defaults.h"
#include "tutti/config/schemas/callbacks.h"
#include "tutti/config/schemas/files.h"
#include "tutti/config/schemas/schedules.h"

namespace tutti::trainer {
namespace {

using config::Catalogue;
using config::Node;
using config::Problems;

// The optimizer's node with the keys of a group over its own.
Node overlaid(const Node& optimizer, const Node& group) {
  auto value = std::make_shared<config::Value>();
  if (optimizer.is_map()) {
    *value = *optimizer.value();
  } else {  // `optimizer: adam`
    value->kind = config::Kind::kMap;
    value->map.emplace_back("_target_", optimizer.value());
  }
  for (const auto& [key, child] : group.items()) {
    if (key == "match" || key == "dims") continue;
    const auto found = std::find_if(value->map.begin(), value->map.end(),
                                    [&key = key](const auto& entry) { return entry.first == key; });
    if (found != value->map.end()) {
      found->second = child.value();
      continue;
    }
    value->map.emplace_back(key, child.value());
    if (!value->key_marks.empty()) value->key_marks.push_back(group.key_mark(key));
  }
  return Node(value, group.path());
}

template <class T>
void read_value(const Node& node, T& out, Problems& problems) {
  std::string expected;
  if (!node.is_null() && !read(node, out, expected))
    problems.add(node, "got " + node.describe_value() + ", expected " + expected);
}

// One pattern, or a list of them.
std::vector<std::string> read_patterns(const Node& node, Problems& problems) {
  std::vector<std::string> out;
  if (node.is_list())
    read_value(node, out, problems);
  else if (!node.is_null())
    read_value(node, out.emplace_back(), problems);
  return out;
}

std::vector<GroupSettings> parse_groups(const Catalogue& catalogue, const Node& optimizer,
                                        const Node& list, Problems& problems) {
  std::vector<GroupSettings> out;
  if (list.is_null()) return out;
  if (!list.is_list()) {
    problems.add(list, "got " + list.describe_value() + ", expected a list",
                 "write param_groups: [{match: [bias], weight_decay: 0}]");
    return out;
  }
  for (const Node& entry : list.elements()) {
    if (!entry.is_map()) {
      problems.add(entry, "got " + entry.describe_value() + ", expected a map",
                   "write {match: [bias], weight_decay: 0}");
      continue;
    }
    GroupSettings group;
    const Node match = entry["match"];
    group.match = read_patterns(match, problems);
    read_value(entry["dims"], group.dims, problems);
    if (match.is_null() && entry["dims"].is_null())
      problems.add(entry, "this group does not say which parameters it takes",
                   "add match: [pattern, ...] or dims: 1");
    group.optimizer = overlaid(optimizer, entry);
    catalogue.check("optimizer", group.optimizer, problems);
    out.push_back(std::move(group));
  }
  return out;
}

void check_scheduler(const Catalogue& catalogue, const OptimizerSettings& settings,
                     Problems& problems) {
  const config::Component* found = catalogue.check("scheduler", settings.scheduler, problems);
  if (found == nullptr || found->name != config::plateau_lr_schema().info().name) return;
  Problems told;  // by the check above
  const std::string mode = config::plateau_lr_schema().parse(settings.scheduler, told).mode;
  const Node at = settings.scheduler["mode"];
  config::warn_of_direction(at.defined()                      ? at
                            : settings.monitor_node.defined() ? settings.monitor_node
                                                              : settings.scheduler,
                            settings.monitor, mode, problems);
}

std::vector<OptimizerSettings> parse_named(const Node& root, const Catalogue& catalogue,
                                           Problems& problems) {
  std::vector<OptimizerSettings> out;
  const Node schedulers = root["schedulers"];
  for (const auto& [name, node] : root["optimizers"].items()) {
    const auto own = config::named_optimizer_schema().parse(node, problems);
    OptimizerSettings settings;
    settings.name = name;
    settings.params = read_patterns(own.params, problems);
    settings.optimizer = own.optimizer;
    if (!own.optimizer.is_null()) {
      catalogue.check("optimizer", own.optimizer, problems);
      settings.groups = parse_groups(catalogue, own.optimizer, own.param_groups, problems);
    }
    settings.gradient_clip_val = own.gradient_clip_val;
    if (own.gradient_clip_algorithm)
      settings.gradient_clip_algorithm =
          *own.gradient_clip_algorithm == "value" ? ClipAlgorithm::kValue : ClipAlgorithm::kNorm;
    if (const Node schedule = schedulers[name]; !schedule.is_null()) {
      const auto when = config::named_scheduler_schema().parse(schedule, problems);
      settings.scheduler = when.scheduler;
      settings.by_epoch = when.interval == "epoch";
      settings.monitor = when.monitor;
      settings.monitor_node = schedule["monitor"];
      if (!when.scheduler.is_null()) check_scheduler(catalogue, settings, problems);
    }
    out.push_back(std::move(settings));
  }
  for (const auto& [name, node] : schedulers.items())
    if (!root["optimizers"][name].defined())
      problems.add({schedulers.key_mark(name), node.path(), "has no optimizer of the same name",
                    "use the names under optimizers"});
  return out;
}

// Whose parameters match what is known when the model is there; but a part of a model of ours is not
// all of it. A user's model may have frozen the rest.
void check_nothing_is_left(const Node& root, const std::vector<OptimizerSettings>& named,
                           Problems& problems) {
  const Node model = root["model"];
  const bool ours = model.is_map() && !model["_target_"].defined();
  if (named.size() != 1 || named[0].params.empty() || !ours || !root["freeze_param"].is_null())
    return;
  const auto& params = named[0].params;
  if (std::find(params.begin(), params.end(), "*") != params.end()) return;
  problems.add(root["optimizers"][named[0].name]["params"],
               "the only optimizer takes a part of the model, and nobody the rest",
               "remove params, add an optimizer for the rest, or freeze it with freeze_param");
}

}  // namespace

std::vector<OptimizerSettings> parse_optimizers(const Node& root, const Catalogue& catalogue,
                                                Problems& problems) {
  const Node several = root["optimizers"];
  if (!several.is_null()) {
    if (!root["optimizer"].is_null() && !config::is_recipe_default(root["optimizer"]))
      problems.add(several, "got optimizer and optimizers", "keep one of the two");
    if (!several.is_map()) {
      problems.add(several,
                   "got " + several.describe_value() + ", expected a map of named optimizers",
                   "write optimizers: {NAME: {optimizer: {_target_: adam}, params: PART}}");
      return {};
    }
    std::vector<OptimizerSettings> named = parse_named(root, catalogue, problems);
    check_nothing_is_left(root, named, problems);
    return named;
  }
  OptimizerSettings settings;
  settings.optimizer = root["optimizer"];
  if (settings.optimizer.is_null()) {
    // A file may leave it to the defaults; null asks for none.
    if (settings.optimizer.defined())
      problems.add(settings.optimizer, "got nothing, expected an optimizer",
                   "add optimizer: {_target_: adam, lr: 0.001}");
  } else {
    catalogue.check("optimizer", settings.optimizer, problems);
    settings.groups = parse_groups(catalogue, settings.optimizer, root["param_groups"], problems);
  }
  settings.scheduler = root["scheduler"];
  std::string interval = "step";
  read_value(root["scheduler_interval"], interval, problems);
  settings.by_epoch = interval == "epoch";
  read_value(root["scheduler_monitor"], settings.monitor, problems);
  settings.monitor_node = root["scheduler_monitor"];
  if (!settings.scheduler.is_null()) check_scheduler(catalogue, settings, problems);
  return {std::move(settings)};
}

}  // namespace tutti::trainer
