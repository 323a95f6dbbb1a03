#include "tutti/parallel/folder/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/fingerprint.h"
#include "tutti/core/log.h"
#include "tutti/core/replace_file.h"
#include "tutti/core/text.h"
#include "tutti/parallel/folder/large_result.h"
#include "tutti/parallel/folder/last_words.h"
#include "tutti/parallel/folder/other_writers.h"
#include "tutti/parallel/wire/ranges.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

Json read_json_file(const fs::path& path) {
  std::error_code ignored;  // missing is a fine answer
  if (!fs::exists(path, ignored)) return nullptr;
  return parse_json(read_file(path), path.string());
}

void report_damage(const fs::path& folder, std::uint64_t hash) {
  scan_journals(folder, hash, true, nullptr, [](const JournalRecord&, std::uint64_t) {});
}

bool is_own_journal(const fs::path& file) {
  const std::string name = file.filename();
  return name.ends_with(".journal") && (name.starts_with("driver-") || name.starts_with("async-"));
}

// An empty file or folder is nobody's loss.
bool holds_something(const fs::path& path) {
  std::error_code failure;
  const auto status = fs::symlink_status(path, failure);
  if (!fs::exists(status)) return false;
  const bool empty = fs::is_empty(path, failure);
  return failure || !empty;
}

// Was a run of ours here? Each makes .tutti first; a copy may have lost it, but not the manifest.
bool is_run_folder(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder / ".tutti", ignored)) return true;
  try {
    const Json manifest = read_manifest(folder);
    return manifest.is_object() && manifest.contains("fingerprint_hash");
  } catch (const Error&) {
    return false;
  }
}

// The manifest comes last: without it the rest would look like somebody else's.
constexpr std::array kOwnNames = {"journal",      "large",       "results.jsonl",
                                  "failed.jsonl", "status.json", "manifest.json"};

// Somebody's files that a run would replace or remove. Nothing has been touched yet.
void refuse_foreign_files(const fs::path& folder) {
  if (is_run_folder(folder)) return;
  for (const char* name : kOwnNames)
    if (holds_something(folder / name))
      throw ConfigError(
          fmt::format("{} is not of a Tutti run, and a run in this folder would overwrite it",
                      (folder / name).string()),
          "use another folder, or move the file away");
}

// What is not ours inside of journal/ and large/ stays.
void remove_own_files(const fs::path& folder) {
  for (const std::string name : kOwnNames) {
    const fs::path path = folder / name;
    if (name == "journal" || name == "large") {
      std::vector<fs::path> ours;
      std::error_code absent;
      for (const auto& entry : fs::directory_iterator(path, absent))
        if (name == "journal" ? is_own_journal(entry.path())
                              : LargeResult::is_name(entry.path().filename().string()))
          ours.push_back(entry.path());
      for (const fs::path& file : ours) fs::remove(file);
      if (!holds_something(path)) fs::remove(path);
    } else {
      fs::remove(path);
    }
  }
}

std::string working_folder() {
  std::error_code none;  // it may be gone
  return fs::current_path(none).string();
}

}  // namespace

fs::path item_names_path(const fs::path& folder) { return folder / ".tutti" / "item_names.jsonl"; }

Json read_manifest(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  try {
    return read_json_file(path);
  } catch (const DataError& error) {
    throw DataError(
        error.what(),
        "use another folder, or run with --force (parallel.resume=false) to start over");
  }
}
Json read_status(const fs::path& folder) { return read_json_file(folder / "status.json"); }

static fs::path last_words_path(const fs::path& folder) { return folder / ".tutti" / "last_words"; }

Json read_last_words(const fs::path& folder) try {
  const std::string words = read_file(last_words_path(folder));
  return trim(words).empty() ? Json::object() : parse_json(words, "last words");
} catch (const Error&) {  // of an older program, or killed in the middle of them
  return Json::object();
}

static constexpr const char* kAsked = "asked to start over";

RunFolder::RunFolder(fs::path path, const Json& fingerprint, Indices indices,
                     RunFolderOptions options)
    : path_(fs::absolute(path)),
      fingerprint_(fingerprint),
      hash_(Fingerprint(fingerprint_).hash()),
      indices_(std::move(indices)) {
  refuse_foreign_files(path_);
  make_own_folder(path_);
  make_private_folder(path_ / ".tutti");
  lock_ = std::make_unique<FolderLock>(path_);
  const BeatKeeper keeper(*lock_);  // a long journal takes long to read
  refuse_if_async_alive(path_);
  remove_leftovers(path_);
  remove_leftovers(path_ / ".tutti");
  const Json manifest = options.resume ? read_manifest(path_) : Json();
  created_ = utc_timestamp(Clock::system().unix_seconds());
  began_in_ = working_folder();
  bool grows = false;
  if (!options.resume && options.redo_if_changed) {
    start_over(kAsked, options.keep_old);
  } else if (!options.resume) {
    remove_async(path_);
    remove_own_files(path_);
  } else if (manifest.is_object()) {
    const auto differences =
        Fingerprint(fingerprint_).changes_since(Fingerprint(manifest.value("fingerprint", Json())));
    grows = options.grows_from.is_object() &&
            Fingerprint(options.grows_from)
                .changes_since(Fingerprint(manifest.value("fingerprint", Json())))
                .empty();
    if (!grows && !differences.empty() && options.redo_if_changed)
      start_over(join(differences, "; "), options.keep_old);
    else if (!grows && !differences.empty())
      throw ConfigError(
          fmt::format("{} holds the results of another run:\n    {}", path_.string(),
                      join(differences, "\n    ")),
          "use another folder, or --force (resume: false in the config) to start over");
    if (grows || differences.empty()) {
      created_ = manifest.value("created", created_);
      if (manifest.contains("began_in")) began_in_ = bytes_from_json(manifest["began_in"]);
    }
  }
  make_own_folder(path_ / "journal");
  make_own_folder(path_ / "logs");
  live_.total = indices_.size();
  // Room for them while there is some.
  write_file_atomic(last_words_path(path_), std::string(LastWords::kRoom, ' '));
  if (!grows) write_manifest("running", live_);
  report_damage(path_, grows ? Fingerprint(options.grows_from).hash() : hash_);
  // A file of our own: a driver that was stopped, lost the folder and woke up writes into its own.
  const fs::path journal = path_ / "journal" / fmt::format("driver-{}.journal", lock_->token());
  journal_ = std::make_unique<JournalWriter>(journal, hash_, options.journal);
  for (const fs::path& place : {path_, path_ / ".tutti", path_ / "journal", journal})
    places_.emplace_back(place);
  if (grows) keep_records_of(Fingerprint(options.grows_from).hash());
  absorb_async(path_, hash_, *journal_);
  done_.resize(indices_.bound());
  scan_journals(path_, hash_, false, nullptr, [&](const JournalRecord& record, std::uint64_t) {
    if (record.index < done_.size() && !done_[record.index])
      done_[record.index] =
          large_problem(path_, record).empty() && record.status != wire::ItemStatus::kFailed;
  });
  for (std::uint64_t i = 0; i < indices_.size(); ++i) done_before_ += done_[indices_[i]] ? 1 : 0;
  live_.ok = done_before_;
}

RunFolder::~RunFolder() {
  if (::getpid() != owner_) static_cast<void>(lock_.release());  // a forked child's copy
}

// The records go into a journal of ours before the manifest says that they are; a kill in between
// leaves the old run as it was. REQUIRES: no asynchronous run is left in the folder.
void RunFolder::keep_records_of(std::uint64_t old_hash) {
  std::vector<fs::path> old;
  for (const fs::path& file : journal_files(path_)) {
    const MappedFile bytes(file);
    if (scan_journal(bytes.bytes(), old_hash,
                     [&](const JournalRecord& record, std::uint64_t) { journal_->append(record); }))
      old.push_back(file);
  }
  journal_->flush();
  journal_->sync();
  write_manifest("running", live_);
  for (const fs::path& file : old) fs::remove(file);
}

// Results that somebody may miss are moved, all at once and whole files only; the lock stays ours.
void RunFolder::start_over(const std::string& why, bool keep_old) {
  const fs::path old = path_.string() + ".old";
  // Who asks for it may have a manifest that cannot be read.
  const bool has_results = keep_old && (fs::exists(path_ / "results.jsonl") ||
                                        (why != kAsked && count_items(path_).ok > 0));
  set_aside_ = has_results;
  if (has_results) {
    fs::remove_all(old);
    make_folders(old);
  }
  std::vector<fs::path> there;
  for (const auto& entry : fs::directory_iterator(path_)) there.push_back(entry.path());
  for (const fs::path& file : there) {
    if (file.filename() == ".tutti") continue;
    if (has_results)
      fs::rename(file, old / file.filename());
    else
      fs::remove_all(file);
  }
  remove_async(path_);
  if (has_results || why != kAsked)
    log::info("{}: {}; the work is done anew{}", path_.filename().string(), why,
              has_results ? ", the old results are in " + old.string() : "");
}

// The logs of the run that failed stay: they say why.
void RunFolder::put_old_results_back() {
  const fs::path old = path_.string() + ".old";
  journal_.reset();
  std::vector<fs::path> there;
  for (const auto& entry : fs::directory_iterator(path_)) there.push_back(entry.path());
  for (const fs::path& file : there)
    if (file.filename() != ".tutti" && file.filename() != "logs") fs::remove_all(file);
  there.clear();
  for (const auto& entry : fs::directory_iterator(old)) there.push_back(entry.path());
  for (const fs::path& file : there)
    if (file.filename() != "logs") fs::rename(file, path_ / file.filename());
  fs::remove_all(old);
  set_aside_ = false;
  log::info("{}: nothing was done; the old results are back", path_.filename().string());
}

std::uint64_t RunFolder::hash() const noexcept { return hash_; }

std::vector<wire::IndexRange> RunFolder::remaining() const {
  std::vector<wire::IndexRange> ranges;
  for (std::uint64_t i = 0; i < indices_.size(); ++i) {
    const std::uint64_t index = indices_[i];
    if (!done_[index]) wire::append_range(ranges, {index, 1});
  }
  return ranges;
}

void RunFolder::record(const Client& client, const Outcome& outcome) {
  check_lock(&FolderLock::check);
  (outcome.ok() ? live_.ok : live_.failed) += 1;
  if (outcome.status != wire::ItemStatus::kOkInFile) {
    journal_->append({outcome.index, outcome.status, outcome.payload});
    // What a kill -9 of the driver can cost: ten milliseconds of results.
    const auto now = std::chrono::steady_clock::now();
    if (now - last_flush_ < std::chrono::milliseconds(10)) return;
    last_flush_ = now;
    journal_->flush();
    return;
  }
  make_own_folder(path_ / "large");
  const std::string name = LargeResult::own_name(outcome.payload);
  const fs::path from = client.large_result(outcome.payload);
  std::error_code none;
  if (!fs::exists(from, none)) {
    // A host that does not share the folder, or a file system that lost it.
    const std::string why = fmt::format(
        "its result of more than {} KiB lies in a file of worker {} that cannot be seen here: {}",
        wire::kMaxInlineResult >> 10, outcome.worker, from.string());
    --live_.ok;
    ++live_.failed;
    log::error("item {}: {}; use an output folder that driver and workers share", outcome.index,
               why);
    journal_->append({outcome.index, wire::ItemStatus::kFailed, why});
    return;
  }
  if (::rename(from.c_str(), (path_ / "large" / name).c_str()) != 0) {
    // Another file system: copy to a temporary name first, so that the file is whole or absent.
    const fs::path partial = path_ / "large" / (name + ".tmp");
    fs::copy_file(from, partial, fs::copy_options::overwrite_existing);
    fs::rename(partial, path_ / "large" / name);
    fs::remove(from);
  }
  fsync_folder(path_ / "large");
  journal_->append({outcome.index, outcome.status, name});
}

void RunFolder::tick(const RunReport& report) {
  check_lock(&FolderLock::beat);
  journal_->flush();
  const auto now = std::chrono::steady_clock::now();
  if (now - last_status_ < std::chrono::seconds(1)) return;
  last_status_ = now;
  check_places();
  Json status;
  status["state"] = "running";
  status["total"] = live_.total;
  status["ok"] = live_.ok;
  status["failed"] = live_.failed;
  status["resumed"] = done_before_;
  status["seconds"] = report.seconds;
  status["rate"] = report.rate;
  status["rate_window_s"] = report.rate_window_s;
  status["eta_s"] = report.eta_s ? Json(*report.eta_s) : Json();
  status["workers_lost"] = report.workers_lost;
  status["items_handed_again"] = report.handed_again;
  status["utilisation"] = report.utilisation;
  status["waiting"] = report.waiting;
  status["updated"] = Clock::system().unix_seconds();
  status["workers"] = Json::array();
  // Rewritten every second, perhaps on a disk that many share: bounded, whatever the number.
  const std::size_t listed = std::min<std::size_t>(report.workers.size(), 100);
  status["workers_not_listed"] = report.workers.size() - listed;
  for (const WorkerReport& worker : std::span(report.workers).first(listed))
    status["workers"].push_back({{"id", worker.id},
                                 {"host", worker.host},
                                 {"pid", worker.pid},
                                 {"phase", worker.phase},
                                 {"items", worker.items},
                                 {"busy_s", worker.busy_s},
                                 {"up_s", worker.up_s},
                                 {"env_build_s", worker.build_s},
                                 {"rss_bytes", worker.rss_bytes}});
  replace_file(path_ / "status.json", status.dump(2) + "\n");
}

// It lies in the folder: what has become of that says more than that the lock is not there.
void RunFolder::check_lock(void (FolderLock::*look)()) const {
  try {
    (lock_.get()->*look)();
  } catch (const IoError&) {
    check_places();
    throw;
  }
}

void RunFolder::check_places() const {
  for (const Place& place : places_) place.check();
}

std::string RunFolder::began_elsewhere() const {
  return began_in_ == working_folder() ? "" : began_in_;
}

void RunFolder::write_manifest(const std::string& state, const FolderCounts& counts,
                               std::string_view reason, int exit_code) const {
  Json manifest;
  manifest["version"] = 1;
  manifest["state"] = state;
  if (!reason.empty()) manifest["reason"] = first_line(reason);
  if (exit_code != 0) manifest["exit_code"] = exit_code;
  manifest["created"] = created_;
  manifest["began_in"] = bytes_to_json(began_in_);
  manifest["updated"] = utc_timestamp(Clock::system().unix_seconds());
  manifest["items"] = counts.total;
  if (indices_.is_range() && indices_.size() > 0) manifest["first"] = indices_[0];
  manifest["ok"] = counts.ok;
  manifest["failed"] = counts.failed;
  manifest["fingerprint_hash"] = fmt::format("{:016x}", hash());
  manifest["fingerprint"] = fingerprint_;
  write_file_atomic(path_ / "manifest.json",
                    manifest.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void update_manifest(const fs::path& folder, const std::string& state, const FolderCounts& counts) {
  Json manifest = read_manifest(folder);
  manifest["state"] = state;
  for (const char* key : {"reason", "exit_code"}) manifest.erase(key);  // of an earlier stop
  manifest["updated"] = utc_timestamp(Clock::system().unix_seconds());
  manifest["ok"] = counts.ok;
  manifest["failed"] = counts.failed;
  write_file_atomic(folder / "manifest.json", manifest.dump(2) + "\n");
}

FolderCounts RunFolder::finish(const std::function<Json(std::uint64_t)>& item_of,
                               const std::function<void(std::uint64_t, const Json&)>& each) {
  check_places();
  lock_->check();
  const BeatKeeper keeper(*lock_);
  journal_->flush();
  journal_->sync();
  const FolderCounts counts = write_results(path_, hash(), indices_, item_of, each);
  check_places();
  if (const std::uint64_t lost = counts.missing(); lost > 0) {
    write_manifest("stopped", counts);
    throw IoError(fmt::format("{}: {} items that were done have no record there any more",
                              (path_ / "journal").string(), lost),
                  "somebody removed a journal while the run was going; run the same command again");
  }
  write_manifest("done", counts);
  std::error_code ignored;  // a leftover status would only be out of date
  fs::remove(path_ / "status.json", ignored);
  return counts;
}

void RunFolder::stop(const std::function<Json(std::uint64_t)>& item_of, std::string_view reason,
                     int exit_code) noexcept {
  bool ours = false;
  try {
    check_places();
    lock_->check();  // another driver's manifest is not ours to write
    ours = true;
    if (set_aside_ && live_.ok + live_.failed == 0) return put_old_results_back();
    journal_->flush();
    journal_->sync();
    write_manifest("stopped", live_, reason, exit_code);
    if (live_.failed > 0) write_results(path_, hash(), indices_, item_of, nullptr, true);
    std::error_code ignored;
    fs::remove(path_ / "status.json", ignored);
  } catch (const std::exception&
               error) {  // a full disk on the way out: the journal is good up to its tail
    log::warning("{}: {}", path_.string(), error.what());
    if (ours) say_last_words(reason, exit_code);
  }
}

// Where the manifest cannot be written any more.
void RunFolder::say_last_words(std::string_view reason, int exit_code) const noexcept try {
  const Json words = {
      {"state", "stopped"}, {"reason", first_line(reason)}, {"exit_code", exit_code}};
  LastWords(last_words_path(path_)).say(to_json_line(words));
} catch (const std::exception&) {  // then nothing is said
}

void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;  // what cannot be removed is in nobody's way
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (is_temporary_name(entry.path())) fs::remove(entry.path(), ignored);
}

}  // namespace tutti::parallel
