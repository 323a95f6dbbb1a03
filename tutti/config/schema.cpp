#include "tutti/config/schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/config/load.h"
#include "tutti/core/text.h"

namespace tutti::config {

void check_unknown_keys(const Node& node, const std::vector<std::string>& known,
                        const std::map<std::string, std::string>& elsewhere, Problems& problems) {
  for (const auto& [key, child] : node.items()) {
    const bool reserved = key.size() > 2 && key.starts_with('_') && key.ends_with('_');
    if (reserved || std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (const auto found = elsewhere.find(key); found != elsewhere.end()) {
      problems.add({node.key_mark(key), child.path(), found->second, {}, true});
      continue;
    }
    if (const std::string meant = child.is_null() ? unglued(key) : ""; !meant.empty()) {
      problems.add({node.key_mark(key), child.path(), "a key without a blank after its colon",
                    "write " + meant, true});
      continue;
    }
    std::vector<std::string> candidates;
    for (const auto& name : known)
      if (name.find('.') == std::string::npos) candidates.push_back(name);
    const std::string guess = closest_match(key, candidates);
    std::sort(candidates.begin(), candidates.end());
    problems.add({node.key_mark(key), child.path(), "unknown key",
                  !guess.empty()       ? fmt::format("did you mean '{}'?", guess)
                  : candidates.empty() ? "remove it"
                                       : "known keys here: " + join(candidates, ", "),
                  true});
  }
}

void check_rule(const Node& node, const Rule& rule, Problems& problems) {
  if (node.is_null()) return;
  if (node.is_list()) {
    for (const auto& element : node.elements()) check_rule(element, rule, problems);
    return;
  }
  if (!node.is_scalar()) return;
  if (!rule.one_of.empty() &&
      std::find(rule.one_of.begin(), rule.one_of.end(), node.raw()) == rule.one_of.end()) {
    const std::string guess = closest_match(node.raw(), rule.one_of);
    problems.add(node,
                 fmt::format("got '{}', expected one of {}", node.raw(), join(rule.one_of, ", ")),
                 guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
  }
  double value = 0;
  std::string expected;
  if ((!rule.min && !rule.max) || !read(node, value, expected)) return;
  const bool low = rule.min && !(value >= *rule.min);
  const bool high = rule.max && !(value <= *rule.max);
  if (!low && !high) return;
  std::string range;
  if (rule.min && rule.max)
    range = fmt::format("{} to {}", format_number(*rule.min), format_number(*rule.max));
  else if (rule.min)
    range = format_number(*rule.min) + " or more";
  else
    range = "at most " + format_number(*rule.max);
  problems.add(node, fmt::format("got {}, expected {}{}{}", node.raw(), range,
                                 rule.unit.empty() ? "" : " ", rule.unit));
}

Rule::~Rule() = default;

AnySchema::AnySchema(std::string name, std::string doc)
    : info_{std::move(name), std::move(doc), {}, {}} {}

void AnySchema::add_field(std::string_view key, const void* defaults, const void* member,
                          const MemberType& type, std::string_view doc, const Rule& rule) {
  const auto distance = static_cast<const char*>(member) - static_cast<const char*>(defaults);
  readers_.push_back([key = std::string(key), distance, &type, rule](const Node& node, void* out,
                                                                     Problems& problems) {
    const Node value = node[key];
    if (!value.defined()) {
      if (rule.required)
        problems.add(node, "key '" + key + "' is missing",
                     "add " + key + ": <" + type.name() + ">");
      return;
    }
    if (value.is_null() && !type.holds_null) return;
    std::string expected;
    if (!type.read(value, static_cast<char*>(out) + distance, expected)) {
      problems.add(value, "got " + value.describe_value() + ", expected " + expected);
      return;
    }
    check_rule(value, rule, problems);
  });
  info_.fields.push_back({std::string(key), type.name(),
                          rule.required ? "" : type.default_text(member), std::string(doc), rule});
}

void AnySchema::add_group(const std::string& key, const SchemaInfo& inner, Reader reader) {
  for (FieldInfo field : inner.fields) {
    field.key = key + "." + field.key;
    info_.fields.push_back(std::move(field));
  }
  groups_.push_back(key);
  readers_.push_back(
      [key, reader = std::move(reader)](const Node& node, void* out, Problems& problems) {
        const Node value = node[key];
        if (!value.is_null()) reader(value, out, problems);
      });
}

void AnySchema::add_refused(const std::string& key, const std::vector<std::string>& harmless,
                            const std::string& instead) {
  info_.refused.emplace_back(key, instead);
  readers_.push_back([key, harmless, instead](const Node& node, void*, Problems& problems) {
    const Node value = node[key];
    if (value.is_null() || (!value.is_scalar() && value.size() == 0)) return;
    for (const auto& text : harmless)
      if (value.is_scalar() && value.raw() == text) return;
    problems.add({node.key_mark(key), value.path(), "not supported", instead});
  });
}

void AnySchema::parse_into(void* out, const Node& node, Problems& problems) const {
  if (node.is_null()) {
    for (const auto& field : info_.fields)
      if (field.rule.required) problems.add(node, "key '" + field.key + "' is missing");
    return;
  }
  if (!node.is_map()) {
    problems.add(node, "got " + node.describe_value() + ", expected a map (" + info_.name + ")");
    return;
  }
  const Node renamed = apply_renames(node, problems);
  std::vector<std::string> known = groups_;
  for (const auto& field : info_.fields) known.push_back(field.key);
  for (const auto& [key, instead] : info_.refused) known.push_back(key);
  check_unknown_keys(renamed, known, elsewhere_, problems);
  for (const auto& reader : readers_) reader(renamed, out, problems);
  for (const auto& check : checks_) check(renamed, out, problems);
}

Node AnySchema::apply_renames(const Node& node, Problems& problems) const {
  if (renamed_.empty()) return node;
  auto copy = std::make_shared<Value>(*node.value());
  for (auto& [key, value] : copy->map) {
    const auto found = renamed_.find(key);
    if (found == renamed_.end()) continue;
    problems.warn(node[key], "'" + key + "' is an old name", "use '" + found->second + "'");
    if (!node[found->second].defined()) key = found->second;
  }
  return Node(std::move(copy), node.path());
}

std::string format_number(double value) { return fmt::format("{:g}", value); }
std::string format_bytes_yaml(const Bytes& value) { return std::to_string(value.count); }
std::string format_duration_yaml(const Duration& value) { return format_number(value.seconds); }

}  // namespace tutti::config
