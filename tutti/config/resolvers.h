// Functions a config may call: `${name:argument,argument}`.
//
//   Resolvers resolvers = Resolvers::standard();
//   resolvers.add("twice", [](const ResolverCall& c) { return text_value(c.argument(0) + c.argument(0)); });
//   const Node config = load({.files = {"conf/training.yaml"}, .resolvers = resolvers});
//
// The standard ones: `oc.env:NAME[,default]`, `self_name:`, `load_line:FILE` (a list of stripped
// lines), `config_path:FILE` (absolute), `set_corpus_and_system:` ("mini_an4_asr", from the
// folder). Relative paths are taken from the folder of the YAML file that holds the call, not from
// the working folder, so a recipe can be run from anywhere.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/config/node.h"

namespace tutti::config {

struct ResolverCall {
  std::string name;
  std::vector<std::string> arguments;  // trimmed, quotes removed, nested ${...} already replaced
  Mark mark;
  std::filesystem::path folder;  // of the YAML file that holds the call
  std::string self_name;

  // Throws ResolverError when there are fewer arguments.
  const std::string& argument(std::size_t index) const;
};

// What a resolver throws; `load` adds place and key.
class ResolverError : public std::runtime_error {
 public:
  explicit ResolverError(const std::string& what, std::string fix = {})
      : std::runtime_error(what), fix_(std::move(fix)) {}
  const std::string& fix() const noexcept { return fix_; }

 private:
  std::string fix_;
};

// A scalar as if written there without quotes, so that a number from the environment is a number.
ValuePtr text_value(std::string text);

class Resolvers {
 public:
  using Function = std::function<ValuePtr(const ResolverCall&)>;

  static Resolvers standard();
  // A later function of the same name replaces the earlier.
  void add(std::string name, Function function) {
    functions_[std::move(name)] = std::move(function);
  }
  const Function* find(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  std::map<std::string, Function> functions_;
};

}  // namespace tutti::config
