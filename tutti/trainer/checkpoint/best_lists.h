// best.json: the weights that were best, by criterion, best first, each with the checksum of its file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::trainer {

struct BestEntry {
  std::string file;
  double value = 0;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::optional<std::uint32_t> crc32c;  // none: of an older program
};
using BestLists = std::map<std::string, std::vector<BestEntry>>;  // by the criterion's metric

// Empty where there is no best.json.
BestLists read_best(const std::filesystem::path& folder);
void write_best(const std::filesystem::path& folder, const BestLists& best);
// Leaves out files that are gone, each with a warning.
void drop_missing(const std::filesystem::path& folder, BestLists& best);

// JSON has no infinity, which is what the loss of a bad epoch can be.
Json number_json(double value);
double number_of(const Json& json);

// "valid/loss" -> "valid.loss": a file name of a metric.
std::string metric_file_name(const std::string& metric);

}  // namespace tutti::trainer
