// Names for what may run on a worker. A program registers its own classes before main:
//
//   Json square(std::uint64_t index) { return index * index; }
//   TUTTI_REGISTER_FUNCTION(square);
//
// and plugins (`plugins: [libmy_recipe.so]`, config/plugin.h) theirs when they are loaded:
//
//   TUTTI_PLUGIN(registry) {
//     registry.add<MyProvider>(my_provider_schema());
//     registry.add<MyRunner>(my_runner_schema());
//     registry.add<MyWorkerPlugin>(my_worker_plugin_schema());   // set up by every worker that loads the library
//   }
//
// A registered class must be constructible as its base is: providers from (config, params), runners
// from a provider (inherit the constructors with `using`), plugins from nothing.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <vector>

#include "tutti/config/plugin_kind.h"
#include "tutti/parallel/provider.h"

namespace tutti::parallel {

class BaseRunner;
using ItemFunction = Json (*)(std::uint64_t index);
// Called once by whoever writes results.jsonl (the driver, or the last asynchronous worker), after
// it: writes what else is to lie in the output folder. May be called again; must then do the same.
using Finisher = void (*)(const std::filesystem::path& output_dir, const Json& params);

class Registry {
 public:
  using MakeProvider = std::function<std::unique_ptr<EnvironmentProvider>(config::Node, Json)>;
  using MakeRunner = std::function<std::unique_ptr<BaseRunner>(const EnvironmentProvider&)>;
  using MakePlugin = std::function<std::unique_ptr<WorkerPlugin>()>;

  // The program's one; a static so that registration can happen before main in any file.
  static Registry& global();

  void add_provider(const std::string& name, std::type_index type, MakeProvider make);
  void add_runner(const std::string& name, std::type_index type, MakeRunner make);
  void add_plugin(const std::string& name, std::type_index type, MakePlugin make);
  void add_function(const std::string& name, ItemFunction function);
  void add_finisher(const std::string& name, Finisher finisher);

  // Throw ConfigError with the nearest name when there is none.
  const MakeProvider& provider(const std::string& name) const;
  const MakeRunner& runner(const std::string& name) const;
  const MakePlugin& plugin(const std::string& name) const;
  ItemFunction function(const std::string& name) const;
  // Null when this program has none of that name: `tutti wait` merges runs of other programs.
  Finisher finisher(const std::string& name) const;

  // The name an object's class was registered under.
  std::string name_of(const std::type_info& type) const;
  std::string name_of(ItemFunction function) const;

  // A plugin's provider, runner or worker plugin. Once is enough: again does nothing.
  template <class Product>
  void add(const std::string& name);
  // Worker plugins that libraries brought, in order.
  const std::vector<std::string>& library_plugins() const noexcept { return library_plugins_; }

  // What a library adds to workers; the program's own registries are not offered here. Throws
  // ConfigError. May be called from several threads.
  static void load_plugin_library(const std::string& path);

 private:
  std::map<std::string, MakeProvider> providers_;
  std::map<std::string, MakeRunner> runners_;
  std::map<std::string, MakePlugin> plugins_;
  std::map<std::string, ItemFunction> functions_;
  std::map<std::string, Finisher> finishers_;
  std::map<std::type_index, std::string> names_;
  std::vector<std::string> library_plugins_;
};

namespace detail {
template <class T>
std::unique_ptr<EnvironmentProvider> make_provider(config::Node config, Json params) {
  return std::make_unique<T>(std::move(config), std::move(params));
}
template <class T>
std::unique_ptr<BaseRunner> make_runner(const EnvironmentProvider& provider) {
  return std::make_unique<T>(provider);
}
template <class T>
bool register_provider(const char* name) {
  Registry::global().add_provider(name, typeid(T), make_provider<T>);
  return true;
}
template <class T>
bool register_runner(const char* name) {
  Registry::global().add_runner(name, typeid(T), make_runner<T>);
  return true;
}
template <class T>
bool register_plugin(const char* name) {
  Registry::global().add_plugin(
      name, typeid(T), []() -> std::unique_ptr<WorkerPlugin> { return std::make_unique<T>(); });
  return true;
}
inline bool register_function(const char* name, ItemFunction function) {
  Registry::global().add_function(name, function);
  return true;
}
inline bool register_finisher(const char* name, Finisher finisher) {
  Registry::global().add_finisher(name, finisher);
  return true;
}
}  // namespace detail

template <class Product>
void Registry::add(const std::string& name) {
  if (const auto found = names_.find(typeid(Product));
      found != names_.end() && found->second == name)
    return;
  if constexpr (std::is_base_of_v<EnvironmentProvider, Product>) {
    add_provider(name, typeid(Product), detail::make_provider<Product>);
  } else if constexpr (std::is_base_of_v<WorkerPlugin, Product>) {
    add_plugin(name, typeid(Product), [] { return std::make_unique<Product>(); });
    library_plugins_.push_back(name);
  } else {
    add_runner(name, typeid(Product), detail::make_runner<Product>);
  }
}

#define TUTTI_REGISTER_PROVIDER(Class)                          \
  [[maybe_unused]] static const bool tutti_registered_##Class = \
      ::tutti::parallel::detail::register_provider<Class>(#Class)
#define TUTTI_REGISTER_RUNNER(Class)                            \
  [[maybe_unused]] static const bool tutti_registered_##Class = \
      ::tutti::parallel::detail::register_runner<Class>(#Class)
#define TUTTI_REGISTER_PLUGIN(Class)                            \
  [[maybe_unused]] static const bool tutti_registered_##Class = \
      ::tutti::parallel::detail::register_plugin<Class>(#Class)
#define TUTTI_REGISTER_FUNCTION(function)                          \
  [[maybe_unused]] static const bool tutti_registered_##function = \
      ::tutti::parallel::detail::register_function(#function, function)
#define TUTTI_REGISTER_FINISHER(function)                          \
  [[maybe_unused]] static const bool tutti_registered_##function = \
      ::tutti::parallel::detail::register_finisher(#function, function)

}  // namespace tutti::parallel

namespace tutti::config {

template <class Product>
requires std::is_base_of_v<parallel::EnvironmentProvider, Product>
struct PluginKind<Product> {
  using Registry = parallel::Registry;
  static constexpr const char* kGroup = "provider";
};
template <class Product>
requires std::is_base_of_v<parallel::BaseRunner, Product>
struct PluginKind<Product> {
  using Registry = parallel::Registry;
  static constexpr const char* kGroup = "runner";
};
template <class Product>
requires std::is_base_of_v<parallel::WorkerPlugin, Product>
struct PluginKind<Product> {
  using Registry = parallel::Registry;
  static constexpr const char* kGroup = "worker plugin";
};

}  // namespace tutti::config
