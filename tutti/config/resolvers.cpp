#include "tutti/config/resolvers.h"

#include <fmt/format.h>

#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {
namespace fs = std::filesystem;

ValuePtr read_environment(const ResolverCall& call) {
  const std::string& name = call.argument(0);
  if (const char* value = std::getenv(name.c_str())) return text_value(value);
  if (call.arguments.size() < 2) {
    throw ResolverError(fmt::format("environment variable '{}' is not set", name),
                        fmt::format("export {0}, or give a default: ${{oc.env:{0},value}}", name));
  }
  if (call.arguments[1] == "null") return std::make_shared<Value>();
  return text_value(call.arguments[1]);
}

// A folder has no slash at its end: `${config_path:..}/data` is one name of the place, not a second.
fs::path absolute_from(const ResolverCall& call) {
  const fs::path path = fs::absolute(call.folder / call.argument(0)).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// ESPnet3 keeps recipes in egs3/<corpus>/<system>/conf, ours are in recipes/<corpus>/conf and have
// one system: speech recognition.
ValuePtr corpus_and_system(const ResolverCall& call) {
  if (!call.arguments.empty() && !call.arguments[0].empty()) return text_value(call.arguments[0]);
  fs::path folder = fs::absolute(call.folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  while (folder.filename() == "tuning" || folder.filename() == "conf")
    folder = folder.parent_path();
  const fs::path parent = folder.parent_path();
  const bool is_system =
      parent.parent_path().filename() == "egs3" || parent.parent_path().filename() == "recipes";
  return is_system ? text_value(parent.filename().string() + "_" + folder.filename().string())
                   : text_value(folder.filename().string() + "_asr");
}

ValuePtr load_lines(const ResolverCall& call) {
  const fs::path file = absolute_from(call);
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    throw ResolverError("no file " + file.string(),
                        "the path is taken from the folder of the YAML file");
  }
  auto list = std::make_shared<Value>();
  list->kind = Kind::kList;
  std::string content = read_file(file);
  if (content.ends_with('\n')) content.pop_back();
  if (content.empty()) return list;
  for (const auto& line : split(content, '\n')) {
    auto value = std::make_shared<Value>();
    value->kind = Kind::kScalar;
    value->quoted = true;  // a token "1" or "true" is text
    value->text = trim(line);
    value->mark = call.mark;
    list->list.push_back(std::move(value));
  }
  return list;
}

}  // namespace

const std::string& ResolverCall::argument(std::size_t index) const {
  if (index >= arguments.size())
    throw ResolverError(
        fmt::format("'{}' needs {} argument{}", name, index + 1, index == 0 ? "" : "s"));
  return arguments[index];
}

ValuePtr text_value(std::string text) {
  auto value = std::make_shared<Value>();
  value->kind = Kind::kScalar;
  value->text = std::move(text);
  return value;
}

Resolvers Resolvers::standard() {
  Resolvers resolvers;
  resolvers.add("oc.env", read_environment);
  resolvers.add("load_line", load_lines);
  resolvers.add("config_path",
                [](const ResolverCall& call) { return text_value(absolute_from(call).string()); });
  resolvers.add("set_corpus_and_system", corpus_and_system);
  resolvers.add("self_name", [](const ResolverCall& call) { return text_value(call.self_name); });
  return resolvers;
}

const Resolvers::Function* Resolvers::find(const std::string& name) const {
  const auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : &found->second;
}

std::vector<std::string> Resolvers::names() const {
  std::vector<std::string> names;
  for (const auto& [name, function] : functions_) names.push_back(name);
  return names;
}

}  // namespace tutti::config
