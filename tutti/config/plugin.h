// Shared libraries that add components, stages, resolvers and code: `plugins: [libmy_recipe.so]`.
//
//   TUTTI_PLUGIN(registry) {
//     registry.add<trainer::Optimizer>(lion_schema(), make_lion);   // any kind, with its settings
//     registry.add<MyRunner>(my_runner_schema());                   // a provider or a runner
//     registry.add(systems::Stage{.name = "score", .run = score});  // what has a name of its own
//   }
//
// One registration serves the check and the run: names and keys go to the catalogue, the code to
// the registry of the room that uses it. A program without that room (a worker needs no optimizers)
// takes the names alone. The function runs once in each program that loads the library; plugins stay
// loaded until the program ends, because what they registered points into them.
//
// A plugin links nothing of Tutti: it takes the symbols from the program (cmake: tutti_add_plugin),
// so it must be built with the headers of the same version, which is checked before any of its code
// runs.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "tutti/config/plugin_kind.h"
#include "tutti/config/registry.h"
#include "tutti/config/resolvers.h"

// The version of these headers; CMakeLists.txt checks that it is the project's.
#define TUTTI_VERSION "0.1.0"
#define TUTTI_PLUGIN_MARK "a plugin for tutti "

#define TUTTI_PLUGIN(registry)                                                           \
  extern "C" const char* tutti_plugin_mark() { return TUTTI_PLUGIN_MARK TUTTI_VERSION; } \
  extern "C" void tutti_register_plugin([[maybe_unused]] ::tutti::config::PluginRegistry& registry)

namespace tutti::config {

class PluginRegistry {
 public:
  PluginRegistry(Catalogue& catalogue, Resolvers& resolvers)
      : catalogue_(catalogue), resolvers_(resolvers) {}
  Catalogue& catalogue() noexcept { return catalogue_; }
  Resolvers& resolvers() noexcept { return resolvers_; }

  // A component named by its schema: `make(settings, ...)` gives what Kind's factory asks for.
  template <class Product, class Settings, class Make>
  void add(const Schema<Settings>& schema, Make make) {
    catalogue_.add(PluginKind<Product>::kGroup, schema);
    if (auto* registry = find<typename PluginKind<Product>::Registry>())
      registry->add(schema, std::move(make));
  }
  // A class that is made from what the program gives it: a provider, a runner.
  template <class Product, class Settings>
  void add(const Schema<Settings>& schema) {
    catalogue_.add(PluginKind<Product>::kGroup, schema);
    if (auto* registry = find<typename PluginKind<Product>::Registry>())
      registry->template add<Product>(schema.info().name);
  }
  // What has a name of its own and no settings: a stage, a sampler.
  template <class Item>
  void add(Item item) {
    if (auto* registry = find<typename PluginKind<Item>::Registry>())
      PluginKind<Item>::add(*registry, std::move(item));
  }

  // For programs: `object` must outlive the registry.
  template <class Registry>
  void offer(Registry& object) {
    offers_.insert_or_assign(std::type_index(typeid(Registry)), &object);
  }
  // Null when the program offers no such thing.
  template <class Registry>
  Registry* find() const {
    const auto found = offers_.find(std::type_index(typeid(Registry)));
    return found == offers_.end() ? nullptr : static_cast<Registry*>(found->second);
  }
  // True the first time: a library that two files name registers once.
  bool begin(void* library) { return loaded_.insert(library).second; }

 private:
  Catalogue& catalogue_;
  Resolvers& resolvers_;
  std::map<std::type_index, void*> offers_;
  std::set<void*> loaded_;  // handles of the loader
};

// Plugins that come with Tutti lie in PREFIX/lib/tutti/plugins: "digits" there is libdigits.so.
std::filesystem::path shipped_plugin(const std::string& name);
std::vector<std::string> shipped_plugins();  // sorted; empty where none are installed

// The file that an entry of `plugins:` means: from the folder of its YAML file, else one that comes
// with Tutti, else the name as it stands, which the loader searches for.
std::string plugin_path(const Node& entry);

// Every failure (no such file, undefined symbols, another version, an exception while it registers)
// is a problem at the entry, with the way on. In a parallel block any library may stand: workers load
// it, and what it registers if it does.
void load_plugins(const Node& list, PluginRegistry& registry, Problems& problems);
// The same for a path that plugin_path gave, as workers have it. Throws ConfigError.
void load_plugin(const std::string& path, PluginRegistry& registry);

}  // namespace tutti::config
