#include "tutti/config/registry.h"

#include <fmt/format.h>

#include <set>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

// pytorch_lightning is the old name of the package lightning.pytorch.
std::string modern_name(const std::string& target) {
  static const std::string kOld = "pytorch_lightning.";
  return target.starts_with(kOld) ? "lightning.pytorch." + target.substr(kOld.size()) : target;
}

std::string last_part(const std::string& dotted) { return dotted.substr(dotted.rfind('.') + 1); }
std::string first_part(const std::string& dotted) { return dotted.substr(0, dotted.find('.')); }

}  // namespace

void Catalogue::add(Component component) {
  auto shared = std::make_shared<const Component>(std::move(component));
  std::vector<std::string> names = shared->aliases;
  names.push_back(shared->name);
  for (const auto& name : names) {
    if (!by_name_.emplace(Key{shared->group, name}, shared.get()).second)
      throw InternalError(
          fmt::format("component '{}' of group '{}' is registered twice", name, shared->group));
  }
  components_.push_back(std::move(shared));
}

void Catalogue::instead(const std::string& group, const std::string& target, std::string sentence) {
  instead_[{group, target}] = std::move(sentence);
}

const Component* Catalogue::find(const std::string& group, const std::string& target) const {
  const std::string name = modern_name(target);
  if (const auto found = by_name_.find({group, name}); found != by_name_.end())
    return found->second;
  if (name.find('.') == std::string::npos) return nullptr;
  // Packages move classes between modules
  // (lightning.pytorch.callbacks.early_stopping.EarlyStopping); the package and the class are what
  // counts.
  for (const auto& component : components_) {
    if (component->group != group) continue;
    for (const auto& alias : component->aliases)
      if (first_part(alias) == first_part(name) && last_part(alias) == last_part(name))
        return component.get();
  }
  return nullptr;
}

const Component* Catalogue::require(const std::string& group, const Node& node,
                                    Problems& problems) const {
  const Node target = node.is_map() ? node["_target_"] : node;
  if (node.is_map() && !target.defined()) {
    problems.add(node, "key '_target_' is missing",
                 fmt::format("say which {} it is: _target_: {}", group,
                             components(group).empty() ? "NAME" : components(group)[0]->name));
    return nullptr;
  }
  if (!target.is_scalar()) {
    problems.add(target,
                 fmt::format("got {}, expected the name of a {}", target.describe_value(), group));
    return nullptr;
  }
  if (const Component* found = find(group, target.raw())) return found;
  std::string fix;
  if (const auto known = instead_.find({group, modern_name(target.raw())});
      known != instead_.end()) {
    fix = known->second;
  } else {
    // A slip is most often in the last part of a dotted name; compare both.
    std::vector<std::string> names;
    std::vector<std::string> short_names;
    std::map<std::string, std::string> by_short_name;
    for (const auto& [key, component] : by_name_) {
      if (key.first != group) continue;
      names.push_back(key.second);
      short_names.push_back(last_part(key.second));
      by_short_name.emplace(short_names.back(), key.second);
    }
    std::string guess = closest_match(target.raw(), names);
    if (guess.empty()) {
      const std::string short_guess = closest_match(last_part(target.raw()), short_names);
      if (!short_guess.empty()) guess = by_short_name[short_guess];
    }
    std::vector<std::string> own_names;
    for (const Component* component : components(group)) own_names.push_back(component->name);
    fix = guess.empty() ? fmt::format("known: {}; a plugin may add more", join(own_names, ", "))
                        : fmt::format("did you mean '{}'?", guess);
  }
  problems.add(target, fmt::format("unknown {} '{}'", group, target.raw()), fix);
  return nullptr;
}

const Component* Catalogue::check(const std::string& group, const Node& node,
                                  Problems& problems) const {
  const Component* component = require(group, node, problems);
  if (component && node.is_map()) component->check(node, problems);
  return component;
}

std::vector<std::string> Catalogue::groups() const {
  std::set<std::string> names;
  for (const auto& component : components_) names.insert(component->group);
  return {names.begin(), names.end()};
}

std::vector<const Component*> Catalogue::components(const std::string& group) const {
  std::vector<const Component*> out;
  for (const auto& component : components_)
    if (component->group == group) out.push_back(component.get());
  return out;
}

}  // namespace tutti::config
