#include "tutti/trainer/checkpoint/best_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tutti/core/file.h"
#include "tutti/core/log.h"

namespace tutti::trainer {
namespace fs = std::filesystem;

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

double number_of(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}

std::string metric_file_name(const std::string& metric) {
  std::string name = metric;
  std::replace(name.begin(), name.end(), '/', '.');
  return name;
}

BestLists read_best(const fs::path& folder) {
  BestLists best;
  const fs::path path = folder / "best.json";
  if (!fs::exists(path)) return best;
  const Json json = parse_json(read_file(path), path.string());
  for (const auto& [name, list] : json.items())
    for (const Json& e : list) {
      BestEntry entry{e.at("file"), number_of(e.at("value")), e.at("epoch"), e.at("step"), {}};
      if (e.contains("crc32c")) entry.crc32c = e["crc32c"].get<std::uint32_t>();
      best[name].push_back(std::move(entry));
    }
  return best;
}

void write_best(const fs::path& folder, const BestLists& best) {
  Json json = Json::object();
  for (const auto& [name, list] : best) {
    json[name] = Json::array();
    for (const BestEntry& e : list) {
      Json entry = {
          {"file", e.file}, {"value", number_json(e.value)}, {"epoch", e.epoch}, {"step", e.step}};
      if (e.crc32c) entry["crc32c"] = *e.crc32c;
      json[name].push_back(std::move(entry));
    }
  }
  write_file_atomic(folder / "best.json", json.dump(1) + "\n");
}

void drop_missing(const fs::path& folder, BestLists& best) {
  std::set<std::string> missing;  // one may be in two lists
  for (auto& [name, list] : best)
    std::erase_if(list, [&](const BestEntry& entry) {
      if (fs::exists(folder / entry.file)) return false;
      missing.insert(entry.file);
      return true;
    });
  for (const std::string& file : missing)
    log::warning("{}: best.json lists {}, which is not there: it is left out of the averages",
                 folder.string(), file);
}

}  // namespace tutti::trainer
