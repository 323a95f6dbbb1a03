#include "tutti/parallel/folder/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/fingerprint.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/run.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

Json read_json_file(const fs::path& path) {
  std::error_code ignored;  // missing is a fine answer
  if (!fs::exists(path, ignored)) return nullptr;
  return parse_json(read_file(path), path.string());
}

std::uint64_t manifest_hash(const Json& manifest) {
  return std::strtoull(manifest.value("fingerprint_hash", "0").c_str(), nullptr, 16);
}

// Calls `each` for every record that counts, journal by journal: what an asynchronous worker wrote
// after it had lost its claim does not (async/board.h).
void scan_journals(const fs::path& folder, std::uint64_t hash,
                   const std::function<void(MappedFile)>& keep,
                   const std::function<void(const JournalRecord&, std::uint64_t offset)>& each) {
  const auto fence = AsyncFence::load(folder);
  for (const fs::path& file : journal_files(folder)) {
    const std::string stem = file.stem();
    const bool fenced = stem.starts_with("async-");
    if (fenced && !fence) continue;  // of a run that was absorbed; about to be removed
    MappedFile bytes(file);
    scan_journal(bytes.bytes(), hash, [&](const JournalRecord& record, std::uint64_t offset) {
      if (!fenced || fence->accepts(stem, record.index, offset)) each(record, offset);
    });
    if (keep) keep(std::move(bytes));
  }
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

fs::path item_names_path(const fs::path& folder) { return folder / ".tutti" / "item_names.jsonl"; }

Json read_manifest(const fs::path& folder) { return read_json_file(folder / "manifest.json"); }
Json read_status(const fs::path& folder) { return read_json_file(folder / "status.json"); }

RunFolder::RunFolder(fs::path path, const Json& fingerprint, Indices indices,
                     RunFolderOptions options)
    : path_(fs::absolute(path)),
      fingerprint_(fingerprint),
      hash_(Fingerprint(fingerprint_).hash()),
      indices_(std::move(indices)) {
  make_folders(path_);
  lock_ = std::make_unique<FolderLock>(path_);
  refuse_if_async_alive(path_);
  const Json manifest = read_manifest(path_);
  created_ = utc_timestamp(Clock::system().unix_seconds());
  if (!options.resume) {
    remove_async(path_);
    for (const char* name :
         {"journal", "large", "manifest.json", "results.jsonl", "failed.jsonl", "status.json"})
      fs::remove_all(path_ / name);
  } else if (manifest.is_object()) {
    const auto differences =
        Fingerprint(fingerprint_).changes_since(Fingerprint(manifest.value("fingerprint", Json())));
    if (!differences.empty() && options.redo_if_changed)
      start_over(join(differences, "; "), options.keep_old);
    else if (!differences.empty())
      throw ConfigError(fmt::format("{} holds the results of another run:\n    {}", path_.string(),
                                    join(differences, "\n    ")),
                        "use another folder, or resume: false to start over");
    if (differences.empty()) created_ = manifest.value("created", created_);
  }
  make_folders(path_ / "journal");
  make_folders(path_ / "logs");
  live_.total = indices_.size();
  write_manifest("running", live_);
  journal_ =
      std::make_unique<JournalWriter>(path_ / "journal" / "main.journal", hash_, options.journal);
  absorb_async(path_, hash_, *journal_);
  done_.resize(indices_.bound());
  scan_journals(path_, hash_, nullptr, [&](const JournalRecord& record, std::uint64_t) {
    if (record.index < done_.size() && record.status != wire::ItemStatus::kFailed)
      done_[record.index] = true;
  });
  for (std::uint64_t i = 0; i < indices_.size(); ++i) done_before_ += done_[indices_[i]] ? 1 : 0;
  live_.ok = done_before_;
}

RunFolder::~RunFolder() = default;

// Results that somebody may miss are moved, all at once and whole files only; the lock stays ours.
void RunFolder::start_over(const std::string& what_changed, bool keep_old) {
  const fs::path old = path_.string() + ".old";
  const bool has_results =
      keep_old && (fs::exists(path_ / "results.jsonl") || count_items(path_).ok > 0);
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
  log::info("{}: {}; the work is done anew{}", path_.filename().string(), what_changed,
            has_results ? ", the old results are in " + old.string() : "");
}

std::uint64_t RunFolder::hash() const noexcept { return hash_; }

std::vector<wire::IndexRange> RunFolder::remaining() const {
  std::vector<wire::IndexRange> ranges;
  for (std::uint64_t i = 0; i < indices_.size(); ++i) {
    const std::uint64_t index = indices_[i];
    if (done_[index]) continue;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == index)
      ++ranges.back().count;
    else
      ranges.push_back({index, 1});
  }
  return ranges;
}

void RunFolder::record(const Client& client, const Outcome& outcome) {
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
  make_folders(path_ / "large");
  const std::string name = fmt::format("{}.json", outcome.index);
  const fs::path from = client.large_result(outcome.payload);
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
  journal_->flush();
  lock_->beat();
  const auto now = std::chrono::steady_clock::now();
  if (now - last_status_ < std::chrono::seconds(1)) return;
  last_status_ = now;
  Json status;
  status["state"] = "running";
  status["total"] = live_.total;
  status["ok"] = live_.ok;
  status["failed"] = live_.failed;
  status["resumed"] = done_before_;
  status["seconds"] = report.seconds;
  status["rate"] = report.seconds > 0 ? static_cast<double>(report.done) / report.seconds : 0;
  const std::uint64_t left = live_.total - std::min(live_.total, live_.ok + live_.failed);
  status["eta_s"] =
      report.done > 0
          ? Json(report.seconds / static_cast<double>(report.done) * static_cast<double>(left))
          : Json();
  status["workers_lost"] = report.workers_lost;
  status["items_handed_again"] = report.handed_again;
  status["utilisation"] = report.utilisation;
  status["waiting"] = report.waiting;
  status["updated"] = Clock::system().unix_seconds();
  status["workers"] = Json::array();
  for (const WorkerReport& worker : report.workers)
    status["workers"].push_back({{"id", worker.id},
                                 {"host", worker.host},
                                 {"pid", worker.pid},
                                 {"phase", worker.phase},
                                 {"items", worker.items},
                                 {"busy_s", worker.busy_s},
                                 {"up_s", worker.up_s},
                                 {"env_build_s", worker.build_s},
                                 {"rss_bytes", worker.rss_bytes}});
  write_file_atomic(path_ / "status.json", status.dump(2) + "\n");
}

void RunFolder::write_manifest(const std::string& state, const FolderCounts& counts) const {
  Json manifest;
  manifest["version"] = 1;
  manifest["state"] = state;
  manifest["created"] = created_;
  manifest["updated"] = utc_timestamp(Clock::system().unix_seconds());
  manifest["items"] = counts.total;
  if (indices_.is_range() && indices_.size() > 0) manifest["first"] = indices_[0];
  manifest["ok"] = counts.ok;
  manifest["failed"] = counts.failed;
  manifest["fingerprint_hash"] = fmt::format("{:016x}", hash());
  manifest["fingerprint"] = fingerprint_;
  write_file_atomic(path_ / "manifest.json", manifest.dump(2) + "\n");
}

void update_manifest(const fs::path& folder, const std::string& state, const FolderCounts& counts) {
  Json manifest = read_manifest(folder);
  manifest["state"] = state;
  manifest["updated"] = utc_timestamp(Clock::system().unix_seconds());
  manifest["ok"] = counts.ok;
  manifest["failed"] = counts.failed;
  write_file_atomic(folder / "manifest.json", manifest.dump(2) + "\n");
}

FolderCounts RunFolder::finish(const std::function<Json(std::uint64_t)>& item_of,
                               const std::function<void(std::uint64_t, const Json&)>& each) {
  journal_->flush();
  journal_->sync();
  const FolderCounts counts = write_results(path_, hash(), indices_, item_of, each);
  write_manifest("done", counts);
  std::error_code ignored;  // a leftover status would only be out of date
  fs::remove(path_ / "status.json", ignored);
  return counts;
}

void RunFolder::stop(const std::function<Json(std::uint64_t)>& item_of) noexcept {
  try {
    journal_->flush();
    journal_->sync();
    write_manifest("stopped", live_);
    if (live_.failed > 0) write_results(path_, hash(), indices_, item_of, nullptr, true);
    std::error_code ignored;
    fs::remove(path_ / "status.json", ignored);
  } catch (const std::exception&
               error) {  // a full disk on the way out: the journal is good up to its tail
    log::warning("{}: {}", path_.string(), error.what());
  }
}

FolderCounts count_items(const fs::path& folder) {
  const Json manifest = read_manifest(folder);
  FolderCounts counts;
  if (!manifest.is_object()) return counts;
  counts.total = manifest.value("items", std::uint64_t{0});
  std::vector<std::uint8_t> state;  // 0 unknown, 1 failed, 2 ok
  scan_journals(folder, manifest_hash(manifest), nullptr,
                [&](const JournalRecord& record, std::uint64_t) {
                  constexpr std::uint64_t kSane = std::uint64_t{1} << 32;
                  if (record.index >= kSane) return;
                  if (record.index >= state.size()) state.resize(record.index + 1);
                  state[record.index] = std::max<std::uint8_t>(
                      state[record.index], record.status == wire::ItemStatus::kFailed ? 1 : 2);
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
  scan_journals(
      folder, hash, [&](MappedFile file) { journals.push_back(std::move(file)); },
      [&](const JournalRecord& record, std::uint64_t offset) {
        // The first good result counts; of failures the last.
        if (record.index >= where.size() || ok[record.index]) return;
        where[record.index] = (static_cast<std::uint64_t>(journals.size()) << 48) | (offset + 1);
        ok[record.index] = record.status != wire::ItemStatus::kFailed;
      });
  FolderCounts counts;
  counts.total = indices.size();
  std::string failed_lines;
  const fs::path name = folder / "results.jsonl";
  const auto walk = [&](int fd) {  // fd -1: only the failed ones are wanted
    std::string buffer;
    for (std::uint64_t i = 0; i < indices.size(); ++i) {
      const std::uint64_t index = indices[i];
      if (where[index] == 0) continue;
      const std::string_view bytes = journals[where[index] >> 48].bytes();
      const std::uint64_t offset = (where[index] & ((std::uint64_t{1} << 48) - 1)) - 1;
      std::uint32_t length = 0;
      for (int b = 0; b < 4; ++b)
        length |= static_cast<std::uint32_t>(
                      static_cast<std::uint8_t>(bytes[offset + 4 + static_cast<std::uint64_t>(b)]))
                  << (8 * b);
      const auto status = static_cast<wire::ItemStatus>(bytes[offset + 16]);
      const std::string_view payload = bytes.substr(offset + 17, length - 9);
      const std::string item = to_json_line(item_of ? item_of(index) : Json(index));
      if (status == wire::ItemStatus::kFailed) {
        ++counts.failed;
        buffer += fmt::format("{{\"index\":{},\"item\":{},\"status\":\"failed\"}}\n", index, item);
        failed_lines +=
            fmt::format("{{\"index\":{},\"item\":{},\"status\":\"failed\",\"reason\":{}}}\n", index,
                        item, to_json_line(Json(payload)));
      } else {
        ++counts.ok;
        if (fd < 0) continue;
        std::optional<MappedFile> file;
        if (status == wire::ItemStatus::kOkInFile)
          file.emplace(folder / "large" / fs::path(payload).filename());
        const std::string_view result = file ? file->bytes() : payload;
        buffer +=
            fmt::format("{{\"index\":{},\"item\":{},\"status\":\"ok\",\"result\":", index, item);
        if (file) {
          write_all(fd, buffer, name);
          write_all(fd, result, name);
          buffer = "}\n";
        } else {
          buffer += result;
          buffer += "}\n";
        }
        if (each) each(index, Json::parse(result));
      }
      if (buffer.size() > (1 << 20)) {
        if (fd >= 0) write_all(fd, buffer, name);
        buffer.clear();
      }
    }
    if (fd >= 0) write_all(fd, buffer, name);
  };
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
