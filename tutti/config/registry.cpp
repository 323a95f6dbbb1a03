#include "tutti/config/registry.h"

#include <fmt/format.h>
#include <strings.h>

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
bool is_dotted(const std::string& name) { return name.find('.') != std::string::npos; }

// Packages move classes between modules (lightning.pytorch.callbacks.early_stopping.EarlyStopping): the
// package and the class are what counts. A class without a package is that of any.
bool means_class(const std::string& name, const std::string& full) {
  return last_part(name) == last_part(full) &&
         (!is_dotted(name) || first_part(name) == first_part(full));
}

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
  const Component* meant = nullptr;
  for (const auto& component : components_) {
    if (component->group != group || component.get() == meant) continue;
    for (const auto& alias : component->aliases) {
      if (!means_class(name, alias)) continue;
      if (is_dotted(name)) return component.get();
      if (meant) return nullptr;  // two packages have such a class
      meant = component.get();
      break;
    }
  }
  return meant;
}

std::string Catalogue::advice(const std::string& group, const std::string& target) const {
  for (const auto& [key, sentence] : instead_)
    if (key.first == group && means_class(modern_name(target), key.second)) return sentence;
  // By the class alone: long names of one package are much alike.
  std::vector<std::string> classes;
  for (const auto& [key, component] : by_name_)
    if (key.first == group) classes.push_back(last_part(key.second));
  const std::string nearest = closest_match(last_part(target), classes);
  std::string guess;
  for (const auto& [key, component] : by_name_) {
    const std::string& name = key.second;
    const bool is_it = key.first == group && !nearest.empty() &&
                       ::strcasecmp(last_part(name).c_str(), nearest.c_str()) == 0;
    if (is_it && (guess.empty() || first_part(name) == first_part(target))) guess = name;
  }
  if (!guess.empty()) return fmt::format("did you mean '{}'?", guess);
  std::vector<std::string> own_names;
  for (const Component* component : components(group)) own_names.push_back(component->name);
  return fmt::format("known: {}; a plugin may add more", join(own_names, ", "));
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
  problems.add(target, fmt::format("unknown {} '{}'", group, target.raw()),
               advice(group, target.raw()));
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
