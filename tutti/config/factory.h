// From a `_target_` node to an object: the code half of the registry. A room that has the code
// fills a Factory by our own component names; aliases are the catalogue's business.
//
//   Factory<Logger, const RunInfo&> loggers("logger");
//   loggers.add(csv_schema(), [](const CsvSettings& s, const RunInfo& run) {
//     return std::make_unique<CsvLogger>(s, run);
//   });
//   std::unique_ptr<Logger> logger = loggers.make(catalogue, config["trainer"]["logger"][0], run);
//
// make() throws ConfigError (place, key, suggestion) for unknown names and bad settings. Const
// functions may be called from several threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "tutti/config/registry.h"
#include "tutti/core/error.h"

namespace tutti::config {

template <class Product, class... Args>
class Factory {
 public:
  using Make = std::function<std::unique_ptr<Product>(const Node& settings, Args... args)>;

  explicit Factory(std::string group) : group_(std::move(group)) {}
  const std::string& group() const noexcept { return group_; }

  // Code that reads the node itself.
  void add(const std::string& name, Make make) { makers_[name] = std::move(make); }
  // Code that wants the settings read by a schema, whose name is the component's.
  template <class Settings, class Function>
  void add(const Schema<Settings>& schema, Function function) {
    makers_[schema.info().name] = [schema, function](const Node& node, Args... args) {
      Problems problems;
      const Settings settings = node.is_map() ? schema.parse(node, problems) : Settings{};
      problems.throw_if_any();
      if constexpr (std::is_convertible_v<std::invoke_result_t<Function, const Settings&, Args...>,
                                          std::unique_ptr<Product>>)
        return std::unique_ptr<Product>(function(settings, std::forward<Args>(args)...));
      else  // a product that is a value, such as a function
        return std::make_unique<Product>(function(settings, std::forward<Args>(args)...));
    };
  }

  std::unique_ptr<Product> make(const Catalogue& catalogue, const Node& node, Args... args) const {
    Problems problems;
    const Component* component = catalogue.require(group_, node, problems);
    problems.throw_if_any();
    const auto found = makers_.find(component->name);
    if (found == makers_.end()) {
      problems.add(node,
                   "this program has no code for the " + group_ + " '" + component->name + "'",
                   "use another one, or load the plugin that has it");
      problems.throw_if_any();
    }
    return found->second(node, std::forward<Args>(args)...);
  }
  bool has(const std::string& name) const { return makers_.count(name) > 0; }
  // The code under a name of ours; null when there is none.
  const Make* find(const std::string& name) const {
    const auto found = makers_.find(name);
    return found == makers_.end() ? nullptr : &found->second;
  }
  std::vector<std::string> names() const {  // sorted
    std::vector<std::string> names;
    for (const auto& [name, make] : makers_) names.push_back(name);
    return names;
  }

 private:
  std::string group_;
  std::map<std::string, Make> makers_;
};

}  // namespace tutti::config
