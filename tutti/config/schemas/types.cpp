#include "tutti/config/schemas/types.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tutti/core/error.h"
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

std::optional<std::int64_t> Amount::of(std::optional<std::int64_t> total, const char* key) const {
  if (!is_fraction) {
    const auto n = static_cast<std::int64_t>(value);
    return total ? std::min(n, *total) : n;
  }
  if (total) return static_cast<std::int64_t>(static_cast<double>(*total) * value);
  if (value == 1.0) return std::nullopt;
  throw ConfigError(
      fmt::format("trainer.{}: got {}, but the data is a stream of unknown length", key, value),
      "give a number of batches instead of a fraction");
}

std::string Amount::default_text() const {
  if (!is_fraction) return fmt::format("{:.0f}", value);
  return value == 1.0 ? "1.0" : value == 0.0 ? "0.0" : fmt::format("{:g}", value);
}

bool read(const Node& node, Amount& out, std::string& expected) {
  expected = "a number of batches (10) or a part between 0.0 and 1.0";
  if (!node.is_scalar()) return false;
  std::string inner;
  if (!has_point(node.raw())) {
    std::int64_t count = 0;
    if (!read(node, count, inner) || count < 0) return false;
    out = Amount::count(count);
    return true;
  }
  out = {};
  return read(node, out.value, inner) && out.value >= 0 && out.value <= 1;
}

bool read(const Node& node, DevRun& out, std::string& expected) {
  expected = "true, false or a number of batches";
  bool on = false;
  std::string inner;
  if (read(node, on, inner)) return out.batches = on ? 1 : 0, true;
  return read(node, out.batches, inner) && out.batches >= 0;
}

int Accumulation::at(std::int64_t epoch) const {
  const auto after = from_epoch.upper_bound(epoch);
  return after == from_epoch.begin() ? 1 : std::prev(after)->second;
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
