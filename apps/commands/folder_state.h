// What status, wait, gather and cancel know about an output folder.
#pragma once

#include <filesystem>

#include "tutti/core/json.h"
#include "tutti/parallel/folder/folder_lock.h"

namespace tutti::apps {

// state ("queued", "running", "stopped", "done", "died"), items, ok, failed, and while it runs:
// driver and live, or async. Throws DataError when the folder is not one of ours.
Json folder_state(const std::filesystem::path& folder, bool ask_scheduler = true);

// For who looks again and again: what earlier looks have shown of processes on other hosts.
struct FolderWatch {
  parallel::BeatWatch driver{parallel::FolderLock::kPatience};
  parallel::BeatWatch workers{40};
};
// The same without the numbers of items, which would mean to read all journals at each look.
Json folder_activity(const std::filesystem::path& folder, FolderWatch& watch);
// Throws IoError when this user may not look into the run's own folder, and so cannot `verb` it.
void refuse_if_hidden(const std::filesystem::path& folder, const std::string& verb);
// "exp/decoded: stopped, 10 of 14 items ok, 1 failed"
std::string describe_counts(const std::filesystem::path& folder, const Json& state);
bool is_over(const Json& state);
// 0, 7 or 85, or why an asynchronous run had to stop, for a run that is over.
int exit_code_of(const Json& state);

}  // namespace tutti::apps
