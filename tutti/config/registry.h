// What a `_target_` may name: our components, the names ESPnet, Lightning and torch give them, and
// the settings each takes. Torch-free, so that `tutti config check` knows every key of an optimizer
// without linking one.
//
//   Catalogue catalogue = standard_catalogue();           // schemas/standard.h
//   Problems problems;
//   const Component* c = catalogue.check("optimizer", config["optimizer"], problems);
//   c->name;                                              // "adam" for torch.optim.Adam
//
// The code behind a name lives in the room that has it: see factory.h. A plugin may add components
// (plugin.h). Reading from several threads is safe; adding is not.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/config/schema.h"

namespace tutti::config {

struct Component {
  std::string group;  // "optimizer", "scheduler", "logger", "callback", "strategy", ...
  std::string name;   // ours, unique in the group: "adam"
  std::vector<std::string> aliases;
  SchemaInfo info;
  std::function<void(const Node&, Problems&)> check;  // of the keys beside `_target_`
};

class Catalogue {
 public:
  // The schema's name is the component's name.
  template <class T>
  void add(std::string group, Schema<T> schema, std::vector<std::string> aliases = {}) {
    Component component{
        std::move(group), schema.info().name, std::move(aliases), schema.info(), {}};
    component.check = [schema](const Node& node, Problems& problems) {
      schema.parse(node, problems);
    };
    add(std::move(component));
  }
  // Throws InternalError when the name or an alias is taken in the group.
  void add(Component component);
  // A name people bring along that has no counterpart here, and the sentence that says what to use.
  void instead(const std::string& group, const std::string& target, std::string sentence);

  // By our name or another project's; of that, the class alone will do (`CSVLogger`).
  const Component* find(const std::string& group, const std::string& target) const;
  // The component a node names, by `_target_` of a map or as plain text; null with a problem (and a
  // suggestion) when there is none. `check` also checks the other keys.
  const Component* require(const std::string& group, const Node& node, Problems& problems) const;
  const Component* check(const std::string& group, const Node& node, Problems& problems) const;

  std::vector<std::string> groups() const;                                   // sorted
  std::vector<const Component*> components(const std::string& group) const;  // in order of adding

 private:
  // What to write instead of a name that is not known.
  std::string advice(const std::string& group, const std::string& target) const;

  using Key = std::pair<std::string, std::string>;            // group, name or alias
  std::vector<std::shared_ptr<const Component>> components_;  // shared by copies of the catalogue
  std::map<Key, const Component*> by_name_;
  std::map<Key, std::string> instead_;
};

}  // namespace tutti::config
