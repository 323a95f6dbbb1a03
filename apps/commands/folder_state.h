// What status, wait, gather and cancel know about an output folder.
#pragma once

#include <filesystem>

#include "tutti/core/json.h"

namespace tutti::apps {

// state ("queued", "running", "stopped", "done", "died"), items, ok, failed, and while it runs:
// driver and live, or async. Throws DataError when the folder is not one of ours.
Json folder_state(const std::filesystem::path& folder, bool ask_scheduler = true);
bool is_over(const Json& state);
// 0, 7 or 85, or why an asynchronous run had to stop, for a run that is over.
int exit_code_of(const Json& state);

}  // namespace tutti::apps
