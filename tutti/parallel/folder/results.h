// From the journals of an output folder to its results: which records count, what they add up to,
// and the files that are written of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/folder/journal.h"

namespace tutti::parallel {

// What the journals of a folder know.
struct FolderCounts {
  std::uint64_t total = 0;
  std::uint64_t ok = 0;
  std::uint64_t failed = 0;
  std::uint64_t missing() const noexcept { return total > ok + failed ? total - ok - failed : 0; }
};

// The journals of a folder, in the order in which they are read.
std::vector<std::filesystem::path> journal_files(const std::filesystem::path& folder);

// Calls `each` for every record that counts, journal by journal: what an asynchronous worker wrote
// after it had lost its claim does not (async/board.h), nor a large result whose file is not what it
// should be. `report`: say what is damaged, and where. `keep` gets each journal after its records.
void scan_journals(const std::filesystem::path& folder, std::uint64_t hash, bool report,
                   const std::function<void(MappedFile)>& keep,
                   const std::function<void(const JournalRecord&, std::uint64_t offset)>& each);

// Why the record's large result cannot be read; empty: it can, or the record has it.
std::string large_problem(const std::filesystem::path& folder, const JournalRecord& record);

// Counts ok and failed items from the journals, whatever the state of the run. `reasons`: gets those
// of the first 100 failed items.
FolderCounts count_items(const std::filesystem::path& folder,
                         std::map<std::uint64_t, std::string>* reasons = nullptr);

// Writes results.jsonl and failed.jsonl from all journals in the folder, atomically; the same bytes
// whoever did the items, in whatever order and however often. Items in no journal are "missing"; a
// results.jsonl that has more results than the journals (damaged ones) and large/ stays as it is, and
// the counts are those of the file. Else a large result whose file is lost or damaged has failed.
// `only_failed`: leaves results.jsonl alone.
FolderCounts write_results(const std::filesystem::path& folder, std::uint64_t fingerprint_hash,
                           const Indices& indices,
                           const std::function<Json(std::uint64_t)>& item_of,
                           const std::function<void(std::uint64_t, const Json&)>& each,
                           bool only_failed = false);

}  // namespace tutti::parallel
