#include "tutti/trainer/checkpoint/averages.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tutti/trainer/checkpoint/pth.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

Json names_and_sums(const std::vector<BestEntry>& entries) {
  Json out = Json::array();
  for (const BestEntry& entry : entries)
    out.push_back({{"file", entry.file}, {"crc32c", entry.crc32c ? Json(*entry.crc32c) : Json()}});
  return out;
}

std::vector<fs::path> undamaged(const fs::path& folder, const std::vector<BestEntry>& entries) {
  std::vector<fs::path> files;
  for (const BestEntry& entry : entries) {
    const fs::path file = folder / entry.file;
    try {
      const SafetensorsFile header(file);
      if (entry.crc32c) check_file_crc32c(file, *entry.crc32c);
      files.push_back(file);
    } catch (const Error& error) {
      log::warning("{} is left out of the average: {}", entry.file, error.what());
    }
  }
  return files;
}

// Why it cannot stay; empty: it can.
std::string reason_to_renew(const fs::path& base, const Json& record,
                            const std::vector<BestEntry>& entries) {
  if (record.at("of") != names_and_sums(entries)) return "training went on after it was made";
  const fs::path file = base.string() + ".safetensors";
  if (!fs::exists(file)) return "it was gone";
  try {
    check_file_crc32c(file, record.at("crc32c").get<std::uint32_t>());
  } catch (const DataError&) {
    return "it was damaged";
  }
  return "";
}

void renew_by(const fs::path& folder, const BestLists& best) {
  std::vector<fs::path> records;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".ave_") != std::string::npos && name.ends_with("best.json"))
      records.push_back(entry.path());
  }
  std::sort(records.begin(), records.end());
  for (const fs::path& path : records) {
    const Json record = parse_json(read_file(path), path.string());
    const AverageOf wanted{record.at("list"), record.at("most")};
    const auto list = best.find(wanted.list);
    if (list == best.end() || list->second.empty()) continue;
    const fs::path base = folder / path.stem();
    const auto entries = taken(wanted, list->second);
    const std::string reason = reason_to_renew(base, record, entries);
    if (reason.empty()) continue;
    const fs::path made = write_average(folder, wanted, list->second);
    if (made != base)
      for (const char* ending : {".safetensors", ".pth", ".json"})
        fs::remove(base.string() + ending);
    std::vector<std::string> epochs;
    for (const BestEntry& entry : entries) epochs.push_back(std::to_string(entry.epoch + 1));
    log::info("{}: averaged anew from the best epochs so far ({}), as {}", made.filename().string(),
              join(epochs, ", "), reason);
  }
}

}  // namespace

std::vector<BestEntry> taken(const AverageOf& wanted, std::vector<BestEntry> list) {
  if (wanted.most > 0 && static_cast<std::size_t>(wanted.most) < list.size())
    list.resize(static_cast<std::size_t>(wanted.most));
  return list;
}

fs::path write_average(const fs::path& folder, const AverageOf& wanted,
                       const std::vector<BestEntry>& list) {
  const auto entries = taken(wanted, list);
  if (entries.empty()) return {};
  const auto files = undamaged(folder, entries);
  if (files.empty())
    throw DataError(
        fmt::format("{}: none of the best weights by {} can be averaged: all are damaged or gone",
                    folder.string(), wanted.list),
        "train on (trainer.max_epochs), or take the newest weights: " +
            (folder / "last" / "model.safetensors").string());
  const std::string metric = wanted.list.substr(0, wanted.list.find(" ("));
  const fs::path base =
      folder / fmt::format("{}.ave_{}best", metric_file_name(metric), files.size());
  const fs::path partial =
      folder / fmt::format(".{}.{}.partial", base.filename().string(), ::getpid());
  const FileSum sum = average_models(files, partial);
  // The record first: what a kill leaves does not fit it, and is made anew.
  write_file_atomic(base.string() + ".json", Json{{"list", wanted.list},
                                                  {"most", wanted.most},
                                                  {"of", names_and_sums(entries)},
                                                  {"crc32c", sum.crc32c}}
                                                     .dump(1) +
                                                 "\n");
  const SafetensorsFile average(partial);
  stream_pth(base.string() + ".pth", average.specs(),
             [&](const std::string& name) { return average.read(name); });
  fs::rename(partial, base.string() + ".safetensors");
  return base;
}

void renew_averages(const fs::path& folder) {
  const fs::path path = folder / "best.json";
  if (!fs::exists(path)) return;
  // A training that runs may replace files while they are read: then from its new list.
  constexpr int kAttempts = 3;
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    const std::string listed = read_file(path);
    try {
      renew_by(folder, read_best(folder));
    } catch (const Error&) {
      if (attempt == kAttempts || read_file(path) == listed) throw;
    }
    if (read_file(path) == listed) return;
  }
}

}  // namespace tutti::trainer
