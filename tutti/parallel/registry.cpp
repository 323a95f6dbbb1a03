#include "tutti/parallel/registry.h"

#include <mutex>
#include <set>

#include "tutti/config/plugin.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

template <class Map>
const typename Map::mapped_type& find_or_throw(const Map& map, const std::string& name,
                                               const char* kind) {
  const auto found = map.find(name);
  if (found != map.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& entry : map) names.push_back(entry.first);
  const std::string guess = closest_match(name, names);
  throw ConfigError(std::string("no ") + kind + " is registered as '" + name + "'",
                    guess.empty()
                        ? "register it in the program or add its library to parallel.plugins"
                        : "did you mean '" + guess + "'?");
}

template <class Map, class Value>
void add_once(Map& map, const std::string& name, Value value, const char* kind) {
  if (!map.emplace(name, std::move(value)).second)
    throw ConfigError(std::string("two ") + kind + " are registered as '" + name + "'");
}

}  // namespace

Registry& Registry::global() {
  static Registry registry;
  return registry;
}

void Registry::add_provider(const std::string& name, std::type_index type, MakeProvider make) {
  add_once(providers_, name, std::move(make), "providers");
  names_.emplace(type, name);
}
void Registry::add_runner(const std::string& name, std::type_index type, MakeRunner make) {
  add_once(runners_, name, std::move(make), "runners");
  names_.emplace(type, name);
}
void Registry::add_plugin(const std::string& name, std::type_index type, MakePlugin make) {
  add_once(plugins_, name, std::move(make), "plugins");
  names_.emplace(type, name);
}
void Registry::add_function(const std::string& name, ItemFunction function) {
  add_once(functions_, name, function, "functions");
}

void Registry::add_finisher(const std::string& name, Finisher finisher) {
  add_once(finishers_, name, finisher, "finishers");
}

const Registry::MakeProvider& Registry::provider(const std::string& name) const {
  return find_or_throw(providers_, name, "provider");
}
const Registry::MakeRunner& Registry::runner(const std::string& name) const {
  return find_or_throw(runners_, name, "runner");
}
const Registry::MakePlugin& Registry::plugin(const std::string& name) const {
  return find_or_throw(plugins_, name, "plugin");
}
ItemFunction Registry::function(const std::string& name) const {
  return find_or_throw(functions_, name, "function");
}

Finisher Registry::finisher(const std::string& name) const {
  const auto found = finishers_.find(name);
  return found == finishers_.end() ? nullptr : found->second;
}

std::string Registry::name_of(const std::type_info& type) const {
  const auto found = names_.find(type);
  if (found == names_.end())
    throw ConfigError(std::string("class ") + type.name() + " is not registered",
                      "add TUTTI_REGISTER_PROVIDER, _RUNNER or _PLUGIN after its definition");
  return found->second;
}

std::string Registry::name_of(ItemFunction function) const {
  for (const auto& [name, registered] : functions_)
    if (registered == function) return name;
  throw ConfigError("a function given to parallel_map is not registered",
                    "add TUTTI_REGISTER_FUNCTION(name)");
}

void Registry::load_plugin_library(const std::string& path) {
  static std::mutex mutex;              // workers may be threads of one program
  static std::set<std::string> loaded;  // guarded by mutex
  const std::lock_guard lock(mutex);
  if (loaded.count(path) > 0) return;
  config::Catalogue names;  // checked by the driver
  config::Resolvers resolvers;
  config::PluginRegistry registry(names, resolvers);
  registry.offer(global());
  config::load_plugin(path, registry);
  loaded.insert(path);
}

}  // namespace tutti::parallel
