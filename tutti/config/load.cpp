#include "tutti/config/load.h"

#include <yaml-cpp/yaml.h>

#include "tutti/config/problem.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::config {
namespace {

ValuePtr convert(const YAML::Node& yaml, const std::shared_ptr<const std::string>& file) {
  auto value = std::make_shared<Value>();
  value->mark = {file, yaml.Mark().line + 1, yaml.Mark().column + 1};
  if (yaml.IsMap()) {
    value->kind = Kind::kMap;
    for (const auto& entry : yaml) value->map.emplace_back(entry.first.Scalar(), convert(entry.second, file));
  } else if (yaml.IsSequence()) {
    value->kind = Kind::kList;
    for (const auto& entry : yaml) value->list.push_back(convert(entry, file));
  } else if (yaml.IsScalar()) {
    value->kind = Kind::kScalar;
    value->quoted = yaml.Tag() == "!";
    value->text = yaml.Scalar();
  }
  return value;
}

}  // namespace

Node parse_yaml(std::string_view text, const std::string& name) {
  return Node(convert(YAML::Load(std::string(text)), std::make_shared<const std::string>(name)));
}

Node load(const LoadOptions& options) {
  if (options.files.size() != 1 || !options.overrides.empty()) throw InternalError("load: one file only, so far");
  return parse_yaml(read_file(options.files[0]), options.files[0].string());
}

Node resolve(const Node& root) { return root; }

}  // namespace tutti::config
