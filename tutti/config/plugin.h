// Shared libraries that add components, resolvers and code: `plugins: [libmy_recipe.so]`.
//
// A plugin exports one function:
//
//   extern "C" void tutti_register(tutti::config::PluginHost& host) {
//     host.catalogue().add("metric", my_metric_schema());
//     if (auto* metrics = host.find<Factory<Metric>>("metric")) metrics->add(...);
//   }
//
// It is called once per program. What a program offers beyond catalogue and resolvers it puts under
// a name with `offer`; a program without that part (the torch-free front door has no metrics)
// offers nothing and the plugin goes on. Plugins stay loaded until the program ends: what they
// registered points into them. They must be built with the same compiler and Tutti version as the
// program.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <typeindex>
#include <utility>

#include "tutti/config/registry.h"
#include "tutti/config/resolvers.h"

namespace tutti::config {

class PluginHost {
 public:
  PluginHost(Catalogue& catalogue, Resolvers& resolvers)
      : catalogue_(catalogue), resolvers_(resolvers) {}
  Catalogue& catalogue() noexcept { return catalogue_; }
  Resolvers& resolvers() noexcept { return resolvers_; }

  // `object` must outlive the host.
  template <class T>
  void offer(const std::string& name, T& object) {
    offers_.insert_or_assign(name, std::pair<std::type_index, void*>(typeid(T), &object));
  }
  // Null when the program offers no such thing.
  template <class T>
  T* find(const std::string& name) const {
    const auto found = offers_.find(name);
    if (found == offers_.end() || found->second.first != std::type_index(typeid(T))) return nullptr;
    return static_cast<T*>(found->second.second);
  }

 private:
  Catalogue& catalogue_;
  Resolvers& resolvers_;
  std::map<std::string, std::pair<std::type_index, void*>> offers_;
};

// Loads every library of a `plugins:` list (relative paths from the folder of the YAML file, bare
// names also from the loader's search path). Each failure is a problem with the loader's words.
void load_plugins(const Node& list, PluginHost& host, Problems& problems);

}  // namespace tutti::config
