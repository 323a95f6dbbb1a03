#include "tutti/parallel/folder/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/parallel/folder/large_result.h"
#include "tutti/parallel/folder/other_writers.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

std::uint64_t manifest_hash(const Json& manifest) {
  return std::strtoull(manifest.value("fingerprint_hash", "0").c_str(), nullptr, 16);
}

// How a line of results.jsonl ends whose item has no result, or none yet.
constexpr std::string_view kFailed = "\"status\":\"failed\"}\n";
constexpr std::string_view kMissing = "\"status\":\"missing\"}\n";

// `total` is left alone.
FolderCounts count_results(const fs::path& file) {
  const MappedFile mapped(file);
  FolderCounts counts;
  for (std::string_view rest = mapped.bytes(); !rest.empty();) {
    const auto end = rest.find('\n');
    if (end == rest.npos) break;
    const std::string_view line = rest.substr(0, end + 1);
    if (!line.ends_with(kMissing)) ++(line.ends_with(kFailed) ? counts.failed : counts.ok);
    rest.remove_prefix(end + 1);
  }
  return counts;
}

}  // namespace

std::vector<fs::path> journal_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;  // no journal folder: no journals
  for (const auto& entry : fs::directory_iterator(folder / "journal", ignored))
    if (entry.path().extension() == ".journal") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void scan_journals(const fs::path& folder, std::uint64_t hash, bool report,
                   const std::function<void(MappedFile)>& keep,
                   const std::function<void(const JournalRecord&, std::uint64_t offset)>& each) {
  const auto fence = AsyncFence::load(folder);
  for (const fs::path& file : journal_files(folder)) {
    const std::string stem = file.stem();
    const bool fenced = stem.starts_with("async-");
    if (fenced && !fence) continue;  // of a run that was absorbed; about to be removed
    MappedFile bytes(file);
    std::vector<JournalDamage> damage;
    const std::uint64_t good = scan_journal(
        bytes.bytes(), hash,
        [&](const JournalRecord& record, std::uint64_t offset) {
          if (!fenced || fence->accepts(stem, record.index, offset)) each(record, offset);
        },
        &damage);
    if (report && good == 0 && bytes.bytes().size() >= 16)
      log::warning("{}: not a journal of this run; its items are not counted", file.string());
    for (const JournalDamage& hole : damage)
      if (report)
        log::warning(
            "{}: damaged at byte {} ({} bytes are no record); the items in there run again",
            file.string(), hole.offset, hole.length);
    if (keep) keep(std::move(bytes));
  }
}

std::string large_problem(const fs::path& folder, const JournalRecord& record) {
  if (record.status != wire::ItemStatus::kOkInFile) return "";
  return LargeResult::problem(folder / "large" / fs::path(record.payload).filename());
}

FolderCounts count_items(const fs::path& folder, std::map<std::uint64_t, std::string>* reasons) {
  constexpr std::size_t kMostReasons = 100;
  const Json manifest = read_manifest(folder);
  FolderCounts counts;
  if (!manifest.is_object()) return counts;
  counts.total = manifest.value("items", std::uint64_t{0});
  std::vector<std::uint8_t> state;  // 0 unknown, 1 failed, 2 ok
  scan_journals(folder, manifest_hash(manifest), false, nullptr,
                [&](const JournalRecord& record, std::uint64_t) {
                  constexpr std::uint64_t kSane = std::uint64_t{1} << 32;
                  if (record.index >= kSane) return;
                  if (record.index >= state.size()) state.resize(record.index + 1);
                  std::uint8_t& known = state[record.index];
                  known = std::max<std::uint8_t>(
                      known, record.status == wire::ItemStatus::kFailed ? 1 : 2);
                  if (reasons == nullptr) return;
                  if (known == 1)
                    (*reasons)[record.index] = record.payload;
                  else
                    reasons->erase(record.index);
                  if (reasons->size() > kMostReasons) reasons->erase(std::prev(reasons->end()));
                });
  counts.failed = static_cast<std::uint64_t>(std::count(state.begin(), state.end(), 1));
  counts.ok = static_cast<std::uint64_t>(std::count(state.begin(), state.end(), 2));
  return counts;
}

FolderCounts write_results(const fs::path& folder, std::uint64_t hash, const Indices& indices,
                           const std::function<Json(std::uint64_t)>& item_of,
                           const std::function<void(std::uint64_t, const Json&)>& each,
                           bool only_failed) {
  // Where each item's record lies: journal number in the top 16 bits, offset + 1 below; 0: nowhere.
  std::vector<std::uint64_t> where(indices.bound());
  std::vector<MappedFile> journals;
  std::vector<bool> ok(indices.bound());
  std::unordered_map<std::uint64_t, std::string> lost;  // large results that cannot be read
  scan_journals(
      folder, hash, true, [&](MappedFile file) { journals.push_back(std::move(file)); },
      [&](const JournalRecord& record, std::uint64_t offset) {
        // The first good result counts; of failures the last.
        if (record.index >= where.size() || ok[record.index]) return;
        std::string problem = large_problem(folder, record);
        where[record.index] = (static_cast<std::uint64_t>(journals.size()) << 48) | (offset + 1);
        ok[record.index] = record.status != wire::ItemStatus::kFailed && problem.empty();
        if (problem.empty())
          lost.erase(record.index);
        else
          lost[record.index] = std::move(problem);
      });
  const auto record_of = [&](std::uint64_t index) {
    return journal_record_at(journals[where[index] >> 48].bytes(),
                             (where[index] & ((std::uint64_t{1} << 48) - 1)) - 1);
  };
  FolderCounts counts;
  counts.total = indices.size();
  for (std::uint64_t i = 0; i < indices.size(); ++i)
    if (where[indices[i]] != 0) ++(ok[indices[i]] ? counts.ok : counts.failed);
  std::string failed_lines;
  const fs::path name = folder / "results.jsonl";
  const auto walk = [&](int fd) {  // fd -1: only the failed ones are wanted
    std::string buffer;
    const auto flush = [&] {
      if (fd >= 0) write_all(fd, buffer, name);
      buffer.clear();
    };
    for (std::uint64_t i = 0; i < indices.size(); ++i) {
      if (buffer.size() > (1 << 20)) flush();
      const std::uint64_t index = indices[i];
      if (fd < 0 && (where[index] == 0 || ok[index])) continue;
      const std::string item = to_json_line(item_of ? item_of(index) : Json(index));
      if (where[index] == 0) {
        buffer += fmt::format("{{\"index\":{},\"item\":{},{}", index, item, kMissing);
        continue;
      }
      const JournalRecord record = record_of(index);
      if (!ok[index]) {
        const auto problem = lost.find(index);
        const std::string_view reason = problem != lost.end() ? problem->second : record.payload;
        buffer += fmt::format("{{\"index\":{},\"item\":{},{}", index, item, kFailed);
        failed_lines +=
            fmt::format("{{\"index\":{},\"item\":{},\"status\":\"failed\",\"reason\":{}}}\n", index,
                        item, to_json_line(Json(reason)));
      } else {
        buffer +=
            fmt::format("{{\"index\":{},\"item\":{},\"status\":\"ok\",\"result\":", index, item);
        std::optional<MappedFile> file;
        if (record.status == wire::ItemStatus::kOkInFile)
          file.emplace(folder / "large" / fs::path(record.payload).filename());
        const std::string_view result = file ? file->bytes() : record.payload;
        if (file) {
          flush();
          write_all(fd, result, name);
        } else {
          buffer += result;
        }
        buffer += "}\n";
        if (each) each(index, Json::parse(result));
      }
    }
    flush();
  };
  // What was complete stays: results that a damaged journal has lost are still in the file.
  FolderCounts there = only_failed || each ? FolderCounts{} : count_results(name);
  if (there.ok > counts.ok) {
    there.total = counts.total;
    log::warning("{} has the results of {} items, journal/ and large/ of {}: it is left as it is",
                 name.string(), there.ok, counts.ok);
    return there;
  }
  if (only_failed)
    walk(-1);
  else
    write_file_atomic(name, walk);
  std::error_code ignored;  // absent when none
  if (failed_lines.empty())
    fs::remove(folder / "failed.jsonl", ignored);
  else
    write_file_atomic(folder / "failed.jsonl", failed_lines);
  return counts;
}

}  // namespace tutti::parallel
