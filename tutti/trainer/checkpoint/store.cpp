#include "tutti/trainer/checkpoint/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/checkpoint/averages.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08d}", step); }

// Whole step folders, newest first. Names sort like numbers up to 10^8 steps; beyond, by length.
std::vector<fs::path> step_folders(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && !entry.is_symlink() &&
        entry.path().filename().string().rfind("step-", 0) == 0)
      found.push_back(entry.path());
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    const std::string x = a.filename().string(), y = b.filename().string();
    return x.size() != y.size() ? x.size() > y.size() : x > y;
  });
  return found;
}

// Readers see the old link or the new one.
void replace_link(const fs::path& link, const std::string& target) {
  const fs::path temporary = link.string() + ".tmp";
  fs::remove(temporary);
  fs::create_directory_symlink(target, temporary);
  // `cp -rL` makes a folder of the link, which a link cannot replace.
  const fs::path copied = link.string() + ".copied";
  if (fs::is_directory(fs::symlink_status(link))) fs::rename(link, copied);
  fs::rename(temporary, link);
  fs::remove_all(copied);
}

void link_or_copy(const fs::path& from, const fs::path& to) {
  fs::remove(to);
  std::error_code failed;
  fs::create_hard_link(from, to, failed);
  if (failed) fs::copy_file(from, to);  // a file system without hard links
}

}  // namespace

fs::path room_aside(const fs::path& path) {
  const fs::path aside = path.string() + ".before";
  if (!fs::exists(fs::symlink_status(aside))) return aside;
  for (int number = 1;; ++number) {
    const fs::path older = fmt::format("{}.{}", aside.string(), number);
    if (fs::exists(fs::symlink_status(older))) continue;
    fs::rename(aside, older);
    return aside;
  }
}

std::optional<SaveInfo> save_info_of(const Json& trainer) {
  const auto saved = trainer.find("save");
  if (saved == trainer.end()) return std::nullopt;
  SaveInfo info{saved->at("epoch"), trainer.at("step"), {}, saved->at("keep")};
  for (const auto& [name, value] : saved->at("metrics").items())
    info.metrics[name] = number_of(value);
  return info;
}

class CheckpointStore::Impl {
 public:
  Impl(fs::path folder, Options options)
      : folder_(std::move(folder)), options_(std::move(options)) {
    make_folders(folder_);
    if (options_.rank == 0) {
      remove_leftovers();
      best_ = read_best(folder_);
      drop_missing(folder_, best_);
    }
    writer_ = std::thread([this] { write_loop(); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    writer_.join();
    if (!error_.empty()) log::error("checkpoint: {}", error_);
  }

  void save(Checkpoint snapshot, SaveInfo info, std::optional<SharedSave> shared) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !job_; });
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    throw_error();
    Json metrics = Json::object();
    for (const auto& [name, value] : info.metrics) metrics[name] = number_json(value);
    snapshot.trainer["save"] = {{"epoch", info.epoch}, {"metrics", metrics}, {"keep", info.keep}};
    job_ = std::make_unique<Job>(Job{std::move(snapshot), std::move(info), std::move(shared)});
    changed_.notify_all();
  }

  void finish(const SaveInfo& info) {
    const std::string name = step_folder_name(info.step);
    replace_link(folder_ / "last", name);
    if (info.keep)
      link_or_copy(folder_ / name / "model.safetensors",
                   folder_ / fmt::format("epoch{}_step{}.safetensors", info.epoch, info.step));
    for (std::size_t i = 0; i < options_.criteria.size(); ++i) keep_best(i, info, name);
    if (!info.metrics.empty()) write_best(folder_, best_);
    const std::string best = best_step_folder();
    if (!best.empty() && fs::exists(folder_ / best))
      replace_link(folder_ / "best", best);
    else
      fs::remove_all(folder_ / "best");  // the link, or what `cp -rL` made of it
    auto folders = step_folders(folder_);
    for (std::size_t i = static_cast<std::size_t>(std::max(1, options_.keep_last));
         i < folders.size(); ++i)
      if (folders[i].filename() != best) fs::remove_all(folders[i]);
  }

  Checkpoint take_back() {
    std::lock_guard lock(mutex_);
    return std::exchange(written_, {});
  }

  void flush() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !job_; });
    throw_error();
  }

  std::vector<fs::path> best(const std::string& list) const {
    std::vector<fs::path> files;
    const auto found = best_.find(list);
    if (found != best_.end())
      for (const BestEntry& entry : found->second) files.push_back(folder_ / entry.file);
    return files;
  }

  std::vector<fs::path> write_averages() {
    std::vector<fs::path> written;
    for (const Criterion& criterion : options_.criteria) {  // averages of fewer or older files
      const std::string prefix = metric_file_name(criterion.metric) + ".ave_";
      for (const auto& entry : fs::directory_iterator(folder_))
        if (entry.path().filename().string().rfind(prefix, 0) == 0) fs::remove(entry.path());
    }
    std::set<std::pair<std::string, std::size_t>> names;
    for (std::size_t i = 0; i < options_.criteria.size(); ++i) {
      const auto list = best_.find(list_name(i));
      if (list == best_.end()) continue;
      const AverageOf wanted{list->first, options_.average_best};
      // Of as many by the same metric, the first criterion's has the name.
      if (!names.emplace(options_.criteria[i].metric, taken(wanted, list->second).size()).second)
        continue;
      const fs::path base = write_average(folder_, wanted, list->second);
      if (base.empty()) continue;
      written.push_back(base.string() + ".safetensors");
      written.push_back(base.string() + ".pth");
    }
    return written;
  }

  std::optional<BestFile> top(const Criterion& criterion) const {
    std::size_t index = 0;
    for (; index < options_.criteria.size(); ++index)
      if (options_.criteria[index].metric == criterion.metric &&
          options_.criteria[index].better == criterion.better &&
          options_.criteria[index].keep == criterion.keep)
        break;
    if (index == options_.criteria.size()) return std::nullopt;
    const auto found = best_.find(list_name(index));
    if (found == best_.end() || found->second.empty()) return std::nullopt;
    const BestEntry& entry = found->second.front();
    return BestFile{folder_ / entry.file, entry.value, entry.epoch, entry.step};
  }

  double seconds_waited() const { return waited_; }

 private:
  struct Job {
    Checkpoint snapshot;
    SaveInfo info;
    std::optional<SharedSave> shared;
  };

  // REQUIRES: mutex_ held.
  void throw_error() {
    if (error_.empty()) return;
    const std::string error = std::exchange(error_, {});
    throw IoError("the last checkpoint could not be written: " + error,
                  "free some space in " + folder_.string() + " and run the same command again");
  }

  void write_loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return job_ || stopping_; });
      if (!job_) return;
      Job& job = *job_;  // save() leaves it alone while it is set
      lock.unlock();
      std::string error;
      try {
        write(job);
      } catch (const std::exception& e) {
        error = e.what();
        log::error("checkpoint of step {}: {}", job.info.step, error);
      }
      lock.lock();
      written_ = std::move(job_->snapshot);
      job_.reset();
      error_ = error;
      changed_.notify_all();
    }
  }

  void write(const Job& job) {
    const std::string name = step_folder_name(job.info.step);
    if (job.shared) {
      write_own_part(folder_ / name, *job.shared);
      if (job.shared->rank != 0) return;  // rank 0 waits for us and does the rest
      complete_checkpoint(folder_ / name, *job.shared, job.snapshot.trainer,
                          [this] { return given_up(); });
    } else {
      write_checkpoint(folder_ / name, job.snapshot);
    }
    // A kill from here on leaves a checkpoint to go on from, and what is missing is made up for.
    if (!std::exchange(has_saved_, true)) set_aside_unwatched();
    finish(job.info);
  }

  // Whole, so that training can go back to it. Empty: there is none.
  std::string best_step_folder() const {
    if (options_.criteria.empty()) return "";
    const auto found = best_.find(list_name(0));
    return found == best_.end() || found->second.empty()
               ? ""
               : step_folder_name(found->second.front().step);
  }

  bool given_up() {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return true;
    }
    return options_.give_up && options_.give_up();
  }

  // What a killed run was writing.
  void remove_leftovers() {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      std::error_code ignored;
      if ((name.starts_with(".step-") && name.find(".tmp-") != std::string::npos) ||
          is_temporary_name(entry.path()) || name.ends_with(".tmp") || name.ends_with(".partial"))
        fs::remove_all(entry.path(), ignored);
    }
  }

  // Each criterion has a list of its own, also where several watch one metric: the first is called
  // by the metric's name, others by what they want of it.
  std::string list_name(std::size_t index) const {
    const Criterion& criterion = options_.criteria[index];
    for (std::size_t i = 0; i < index; ++i)
      if (options_.criteria[i].metric == criterion.metric)
        return fmt::format("{} ({} {})", criterion.metric,
                           criterion.better == Better::kLower ? "min" : "max", criterion.keep);
    return criterion.metric;
  }

  bool is_watched(const std::string& list) const {
    return std::any_of(options_.criteria.begin(), options_.criteria.end(), [&](const Criterion& c) {
      return list == c.metric || list.starts_with(c.metric + " (");
    });
  }

  // Of metrics that were criteria before: nobody renews their averages, so that a config which still
  // names one would decode with old weights. best.json goes last: what a killed run leaves here is
  // moved when it goes on.
  void set_aside_unwatched() {
    std::vector<std::string> metrics;
    std::vector<fs::path> files;
    for (const auto& [name, list] : best_) {
      if (is_watched(name)) continue;
      const std::string metric = name.substr(0, name.find(" ("));
      if (std::find(metrics.begin(), metrics.end(), metric) != metrics.end()) continue;
      metrics.push_back(metric);
      for (const auto& entry : fs::directory_iterator(folder_))
        if (entry.path().filename().string().starts_with(metric_file_name(metric) + ".ave_"))
          files.push_back(entry.path());
    }
    if (metrics.empty()) return;
    for (const auto& [name, list] : best_)
      for (const BestEntry& entry : list)
        if (!is_watched(name)) files.push_back(folder_ / entry.file);
    const fs::path aside = room_aside(folder_);
    make_folders(aside);
    for (const fs::path& file : files)
      if (fs::exists(file)) fs::rename(file, aside / file.filename());  // one may be in two lists
    std::erase_if(best_, [this](const auto& list) { return !is_watched(list.first); });
    write_best(folder_, best_);
    log::info("{}: {} is no criterion any more: its best weights and averages were moved to {}",
              folder_.string(), join(metrics, ", "), aside.filename().string());
  }

  bool is_listed(const std::string& file) const {
    for (const auto& [name, list] : best_)
      for (const BestEntry& entry : list)
        if (entry.file == file) return true;
    return false;
  }

  void keep_best(std::size_t index, const SaveInfo& info, const std::string& step_folder) {
    const Criterion& criterion = options_.criteria[index];
    const auto value = info.metrics.find(criterion.metric);
    if (value == info.metrics.end() || criterion.keep <= 0) return;
    if (std::isnan(value->second) || (info.epoch + 1) % criterion.every_n_epochs != 0) return;
    const std::string file = fmt::format("epoch{}_step{}_{}.safetensors", info.epoch, info.step,
                                         metric_file_name(criterion.metric));
    std::vector<BestEntry>& list = best_[list_name(index)];
    // The same step again: a run that was resumed from an older checkpoint.
    std::erase_if(list, [&](const BestEntry& e) { return e.file == file; });
    const auto better = [&](const BestEntry& a, const BestEntry& b) {
      return criterion.better == Better::kLower ? a.value < b.value : a.value > b.value;
    };
    const BestEntry entry{file, value->second, info.epoch, info.step,
                          file_sum(folder_ / step_folder, "model.safetensors")};
    // Behind its equals: strictly better wins, as the first to reach a value keeps its place.
    list.insert(std::upper_bound(list.begin(), list.end(), entry, better), entry);
    link_or_copy(folder_ / step_folder / "model.safetensors", folder_ / file);
    while (list.size() > static_cast<std::size_t>(criterion.keep)) {
      const std::string last = list.back().file;
      list.pop_back();
      if (!is_listed(last)) fs::remove(folder_ / last);
    }
  }

  const fs::path folder_;
  const Options options_;
  std::atomic<double> waited_{0};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Job> job_;  // being written
  Checkpoint written_;        // its tensors may be used again
  std::string error_;
  bool stopping_ = false;

  // Touched by the writer thread, and by others only after flush().
  BestLists best_;
  bool has_saved_ = false;
  std::thread writer_;
};

CheckpointStore::CheckpointStore(fs::path folder, Options options)
    : impl_(std::make_unique<Impl>(std::move(folder), std::move(options))) {}
CheckpointStore::~CheckpointStore() = default;
void CheckpointStore::save(Checkpoint snapshot, SaveInfo info, std::optional<SharedSave> shared) {
  impl_->save(std::move(snapshot), std::move(info), std::move(shared));
}
void CheckpointStore::finish(const SaveInfo& info) { impl_->finish(info); }
void CheckpointStore::flush() { impl_->flush(); }
Checkpoint CheckpointStore::take_back() { return impl_->take_back(); }
std::vector<fs::path> CheckpointStore::write_averages() { return impl_->write_averages(); }
std::vector<fs::path> CheckpointStore::best(const std::string& list) const {
  return impl_->best(list);
}
std::optional<BestFile> CheckpointStore::top(const Criterion& criterion) const {
  return impl_->top(criterion);
}
double CheckpointStore::seconds_waited() const { return impl_->seconds_waited(); }

fs::path CheckpointStore::best_folder(const fs::path& folder,
                                      const std::optional<Criterion>& criterion) {
  if (!criterion)
    throw ConfigError("fit.ckpt_path: got best, but nothing says what is best",
                      "set best_model_criterion: [[valid/loss, 3, min]]");
  const BestLists best = read_best(folder);
  const auto list = best.find(criterion->metric);
  if (list == best.end() || list->second.empty())
    throw ConfigError(fmt::format("fit.ckpt_path: got best, but {} holds nothing that was kept for "
                                  "its {}",
                                  folder.string(), criterion->metric),
                      "leave it out until the first validation is made");
  const fs::path found = folder / step_folder_name(list->second.front().step);
  if (!fs::exists(found))
    throw ConfigError(
        fmt::format("fit.ckpt_path: got best, which is step {} by {}, but only its "
                    "weights are there",
                    list->second.front().step, criterion->metric),
        "begin a run with them: init_param: " + (folder / list->second.front().file).string());
  check_checkpoint(found);
  return found;
}

void CheckpointStore::set_aside_after(const fs::path& folder, std::int64_t step) {
  std::vector<fs::path> later;
  const std::string name = step_folder_name(step);
  for (const fs::path& candidate : step_folders(folder)) {
    if (candidate.filename() == name) break;  // newest first
    later.push_back(candidate);
  }
  BestLists best = read_best(folder);
  for (auto& [metric, list] : best)
    std::erase_if(list, [&](const BestEntry& entry) {
      if (entry.step <= step) return false;
      if (std::find(later.begin(), later.end(), folder / entry.file) == later.end())
        later.push_back(folder / entry.file);
      return true;
    });
  if (later.empty()) return;
  write_best(folder, best);
  replace_link(folder / "last", name);
  const fs::path aside = room_aside(folder);
  make_folders(aside);
  for (const fs::path& path : later)
    if (fs::exists(path)) fs::rename(path, aside / path.filename());
  log::info("{}: what came after step {} was moved to {}", folder.string(), step,
            aside.filename().string());
}

namespace {

// Somebody made room on the disk: fewer steps are done than the files around say.
void tell_of_lost_newest(const fs::path& folder, const fs::path& found) {
  const fs::path last = folder / "last";
  if (fs::is_symlink(last) && !fs::exists(last))
    log::warning("{}: the newest checkpoint, {}, is gone: {} is used", folder.string(),
                 fs::read_symlink(last).filename().string(), found.filename().string());
}

}  // namespace

bool CheckpointStore::has_any(const fs::path& folder) { return !step_folders(folder).empty(); }

std::optional<fs::path> CheckpointStore::newest_folder(const fs::path& folder) {
  for (const fs::path& candidate : step_folders(folder)) {
    try {
      check_checkpoint(candidate);
      tell_of_lost_newest(folder, candidate);
      return candidate;
    } catch (const Error& error) {
      log::warning("checkpoint {} cannot be used: {}; trying the one before",
                   candidate.filename().string(), error.what());
    }
  }
  return std::nullopt;
}

std::optional<CheckpointStore::Found> CheckpointStore::newest(const fs::path& folder) {
  for (const fs::path& candidate : step_folders(folder)) {
    try {
      Found found{candidate, read_checkpoint(candidate)};
      tell_of_lost_newest(folder, candidate);
      return found;
    } catch (const Error& error) {
      log::warning("checkpoint {} cannot be used: {}; trying the one before",
                   candidate.filename().string(), error.what());
    }
  }
  return std::nullopt;
}

}  // namespace tutti::trainer
