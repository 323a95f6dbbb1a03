// The output folder of a run: lock, manifest, journal(s), results. Whatever dies, the folder can be
// opened again and the run goes on at the first item that is not done, with any number of workers.
//
//   D/manifest.json     fingerprint, counts, state ("running", "stopped", "done")
//   D/journal/*.journal one per writer: each driver there ever was, each asynchronous worker
//   D/large/            results too large for the journal
//   D/results.jsonl     all items in order, written whole at the end
//   D/failed.jsonl      only when there are failed items
//   D/status.json       refreshed every second while running
//   D/logs/, D/.tutti/  the workers' logs; lock and keys
//
// Not thread-safe; one object holds the folder's lock.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/folder/folder_lock.h"
#include "tutti/parallel/folder/journal.h"
#include "tutti/parallel/folder/place.h"
#include "tutti/parallel/folder/results.h"

namespace tutti::parallel {

struct RunFolderOptions {
  bool resume = true;  // false: begin anew
  // What is there was made with another fingerprint: says what changed, moves it to PATH.old (which
  // it replaces) and begins anew. Else that is refused. A run that ends before its first result (its
  // model cannot be loaded) puts it back.
  bool redo_if_changed = false;
  bool keep_old = true;  // with redo_if_changed; false: what is there is removed
  // The fingerprint of a run whose items are the first of this one's: what it has done is kept. Null:
  // none.
  Json grows_from = nullptr;
  JournalOptions journal;
};

class RunFolder {
 public:
  // Takes the lock. Throws IoError (in use, read-only, full), ConfigError when what is there was
  // made with another fingerprint (the message lists what differs) or by no run at all.
  RunFolder(std::filesystem::path path, const Json& fingerprint, Indices indices,
            RunFolderOptions options);
  ~RunFolder();

  const std::filesystem::path& path() const noexcept { return path_; }
  std::uint64_t num_done_before() const noexcept { return done_before_; }
  std::uint64_t hash() const noexcept;  // of the fingerprint
  // Not done yet, in the order of the indices. Failed items are tried again.
  std::vector<wire::IndexRange> remaining() const;

  void record(const Client& client, const Outcome& outcome);
  // Flushes the journal, refreshes lock and status.
  void tick(const RunReport& report);
  // Writes results.jsonl, failed.jsonl and the manifest; `each` sees every ok result in order.
  // Throws IoError when items that were done have lost their record.
  FolderCounts finish(const std::function<Json(std::uint64_t)>& item_of,
                      const std::function<void(std::uint64_t, const Json&)>& each);
  // Leaves a resumable folder (with failed.jsonl, so that the reason is there to read). Never
  // throws: it runs on every way out. The first line of `reason` goes into the manifest, and `exit_code`
  // unless it is 0: what `tutti wait` ends with.
  void stop(const std::function<Json(std::uint64_t)>& item_of, std::string_view reason = "",
            int exit_code = 0) noexcept;
  // The working folder in which the run was begun, where that was not this process's. Else empty.
  std::string began_elsewhere() const;

 private:
  void write_manifest(const std::string& state, const FolderCounts& counts,
                      std::string_view reason = "", int exit_code = 0) const;
  void start_over(const std::string& why, bool keep_old);
  void put_old_results_back();
  void say_last_words(std::string_view reason, int exit_code) const noexcept;
  void keep_records_of(std::uint64_t old_hash);
  // Throws IoError when the folder or the journal was taken away or replaced.
  void check_places() const;
  // Throws IoError when the lock is no longer ours.
  void check_lock(void (FolderLock::*look)()) const;

  const std::filesystem::path path_;
  const Json fingerprint_;
  const std::uint64_t hash_;
  const Indices indices_;
  const int owner_ = ::getpid();  // the process that made it
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<JournalWriter> journal_;
  std::vector<Place> places_;  // what must still be there when something is written
  std::vector<bool> done_;
  std::uint64_t done_before_ = 0;
  bool set_aside_ = false;  // what was here lies in PATH.old
  std::string created_;
  std::string began_in_;  // a working folder
  FolderCounts live_;
  std::chrono::steady_clock::time_point last_status_{};
  std::chrono::steady_clock::time_point last_flush_{};
};

// Removes temporary files of writers that were killed. Only for who is alone in the folder, or has
// taken over from the one that was.
void remove_leftovers(const std::filesystem::path& folder);

// Where a run keeps the names of its items for those who write its results later: one JSON value a
// line. Absent: the items are those of .tutti/items (worker/item_file.h), or numbers.
std::filesystem::path item_names_path(const std::filesystem::path& folder);

// manifest.json and status.json of a folder, or null.
Json read_manifest(const std::filesystem::path& folder);
Json read_status(const std::filesystem::path& folder);
// What a driver said that could not write its manifest any more (a full disk): {"state", "reason", "exit_code"}, or
// nothing.
Json read_last_words(const std::filesystem::path& folder);
// Changes state and counts of a manifest that is there.
void update_manifest(const std::filesystem::path& folder, const std::string& state,
                     const FolderCounts& counts);
}  // namespace tutti::parallel
