// What status, wait, gather and cancel know about an output folder.
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "tutti/core/json.h"
#include "tutti/parallel/async/job.h"
#include "tutti/parallel/async/short_patience.h"
#include "tutti/parallel/folder/folder_lock.h"

namespace tutti::apps {

// state ("queued", "running", "stopped", "done", "died"), items, ok, failed, failures (as
// failed_items), and while it runs: driver and live, or async; without a driver, what it has noted of its jobs: jobs_left.
// Throws DataError when the folder is not one of ours.
// Of another user's run, what is known to all, and owner.
// `scheduler`: asked where only it can tell; null: it is not.
Json folder_state(const std::filesystem::path& folder, CommandRunner* scheduler = nullptr);

// For who looks again and again: what earlier looks have shown of processes on other hosts.
struct FolderWatch {
  parallel::BeatWatch driver{parallel::FolderLock::kPatience};
  parallel::BeatWatch workers{40};
  parallel::ShortPatience scheduler;
};
Json folder_state(const std::filesystem::path& folder, FolderWatch& watch);
// The same without the numbers of items, which would mean to read all journals at each look.
Json folder_activity(const std::filesystem::path& folder, FolderWatch& watch);
// Throws IoError when this user may not look into the run's own folder, and so cannot `verb` it.
void refuse_if_hidden(const std::filesystem::path& folder, const std::string& verb);
// How the run names its items, for make_item_of.
parallel::ItemNames item_names(const std::filesystem::path& folder, const Json& manifest);
// What count_items says of failed items, with their names: [{"index", "item", "reason"}].
Json failed_items(const std::filesystem::path& folder,
                  const std::map<std::uint64_t, std::string>& reasons);
// Why a run that is over stopped; empty: nobody said so, or it is done.
std::string reason_of(const Json& state);
// What is said when all workers that are left stand still, or when the scheduler has not answered.
std::string about_silence(const Json& state);
// Jobs of an asynchronous run that the scheduler has, or that ended while nobody works: why, and the
// last words of the first few.
void print_jobs(std::FILE* out, const Json& state);
// What to do about a run that ended early; nothing for others.
void print_way_on(std::FILE* out, const Json& state);
// The first five failed items, with the first line of each one's story, and where the rest is.
void print_failures(std::FILE* out, const std::filesystem::path& folder, const Json& state);
// "exp/decoded: stopped, 10 of 14 items ok, 1 failed"
std::string describe_counts(const std::filesystem::path& folder, const Json& state);
bool is_over(const Json& state);
// 0, 7 or 85, or the code of what ended it, for a run that is over.
int exit_code_of(const Json& state);

}  // namespace tutti::apps
