#include "tutti/config/schemas/types.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tutti/core/text.h"

namespace tutti::config {
namespace {

bool valid_ids(const std::vector<int>& ids) {
  std::vector<int> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  return !ids.empty() && sorted.front() >= 0 &&
         std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

bool has_point(const std::string& text) { return text.find_first_of(".eE") != std::string::npos; }

}  // namespace

std::optional<int> Devices::number() const {
  if (all) return {};
  return ids.empty() ? count : static_cast<int>(ids.size());
}

bool read(const Node& node, Devices& out, std::string& expected) {
  expected = "a number of devices, a list of different ids, -1 or auto";
  out = {};
  std::string inner;
  if (node.is_list()) {
    out.all = false;
    return read(node, out.ids, inner) && valid_ids(out.ids);
  }
  if (!node.is_scalar()) return false;
  const std::string text(trim(node.raw()));
  if (text == "auto" || text == "-1") return true;
  out.all = false;
  if (text.find(',') != std::string::npos) {
    for (const auto& part : split(text, ',')) {
      const Node element(
          std::make_shared<Value>(Value{.kind = Kind::kScalar, .text = std::string(trim(part))}));
      int id = 0;
      if (trim(part).empty()) continue;  // "1," is how Lightning writes the list of one
      if (!read(element, id, inner)) return false;
      out.ids.push_back(id);
    }
    return valid_ids(out.ids);
  }
  return read(node, out.count, inner) && out.count >= 1;
}

std::string BatchLimit::default_text() const {
  if (batches) return std::to_string(*batches);
  return part == 1.0 ? "1.0" : part == 0.0 ? "0.0" : fmt::format("{:g}", part);
}

bool read(const Node& node, BatchLimit& out, std::string& expected) {
  expected = "a number of batches (10) or a part between 0.0 and 1.0";
  if (!node.is_scalar()) return false;
  out = {};
  std::string inner;
  if (!has_point(node.raw())) {
    std::int64_t count = 0;
    if (!read(node, count, inner) || count < 0) return false;
    out.batches = count;
    return true;
  }
  return read(node, out.part, inner) && out.part >= 0 && out.part <= 1;
}

bool read(const Node& node, DevRun& out, std::string& expected) {
  expected = "true, false or a number of batches";
  bool on = false;
  std::string inner;
  if (read(node, on, inner)) return out.batches = on ? 1 : 0, true;
  return read(node, out.batches, inner) && out.batches >= 0;
}

bool read(const Node& node, Accumulation& out, std::string& expected) {
  expected = "a number of batches (4), or such numbers by epoch ({0: 8, 4: 2}), 1 or more";
  out = {};
  std::string inner;
  if (node.is_scalar()) return read(node, out.from_epoch[0], inner) && out.from_epoch[0] >= 1;
  if (!node.is_map() || node.size() == 0) return false;
  for (const auto& [key, value] : node.items()) {
    const Node epoch(std::make_shared<Value>(Value{.kind = Kind::kScalar, .text = key}));
    std::int64_t number = 0;
    int batches = 0;
    if (!read(epoch, number, inner) || number < 0 || !read(value, batches, inner) || batches < 1)
      return false;
    out.from_epoch[number] = batches;
  }
  return true;
}

bool read(const Node& node, Deterministic& out, std::string& expected) {
  expected = "true, false or warn";
  out = {};
  std::string inner;
  if (node.is_scalar() && node.raw() == "warn") return out.on = out.warn_only = true, true;
  return read(node, out.on, inner);
}

bool read(const Node& node, PrecisionName& out, std::string& expected) {
  expected = "one of 32-true, 16-mixed, bf16-mixed, bf16-true, 64-true";
  static const std::map<std::string, std::string> kNames = {
      {"32", "32-true"},      {"32-true", "32-true"},       {"64", "64-true"},
      {"64-true", "64-true"}, {"16", "16-mixed"},           {"16-mixed", "16-mixed"},
      {"bf16", "bf16-mixed"}, {"bf16-mixed", "bf16-mixed"}, {"bf16-true", "bf16-true"},
  };
  if (!node.is_scalar()) return false;
  const auto found = kNames.find(node.raw());
  if (found == kNames.end()) return false;
  out.name = found->second;
  return true;
}

bool read(const Node& node, MaxTime& out, std::string& expected) {
  expected = "a duration such as 00:12:00:00 (DD:HH:MM:SS), 12h or {hours: 12}";
  out = {};
  if (node.is_null()) return true;
  std::string inner;
  if (node.is_scalar()) {
    Duration duration;
    if (!read(node, duration, inner)) return false;
    out.seconds = duration.seconds;
    return true;
  }
  static const std::map<std::string, double> kUnits = {
      {"weeks", 604800}, {"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"seconds", 1}};
  std::map<std::string, double> parts;
  if (!read(node, parts, inner)) return false;
  double total = 0;
  for (const auto& [unit, amount] : parts) {
    const auto found = kUnits.find(unit);
    if (found == kUnits.end() || amount < 0) return false;
    total += amount * found->second;
  }
  out.seconds = total;
  return true;
}

}  // namespace tutti::config
