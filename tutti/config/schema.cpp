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

std::string format_number(double value) { return fmt::format("{:g}", value); }
std::string format_bytes_yaml(const Bytes& value) { return std::to_string(value.count); }
std::string format_duration_yaml(const Duration& value) { return format_number(value.seconds); }

}  // namespace tutti::config
