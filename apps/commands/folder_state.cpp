#include "apps/commands/folder_state.h"

#include "tutti/core/error.h"
#include "tutti/parallel/run_folder.h"

namespace tutti::apps {

Json folder_state(const std::filesystem::path& folder) {
  const Json manifest = parallel::read_manifest(folder);
  if (!manifest.is_object())
    throw DataError(folder.string() + ": no manifest.json: not an output folder of map or infer",
                    "check the path");
  const auto counts = parallel::count_items(folder);
  const auto holder = parallel::FolderLock::holder(folder);
  Json state;
  // A manifest that says "running" without a living driver was left by a kill -9.
  const std::string written = manifest.value("state", "?");
  state["state"] = written == "running" && !holder.alive ? "died" : written;
  state["items"] = counts.total;
  state["ok"] = counts.ok;
  state["failed"] = counts.failed;
  state["created"] = manifest.value("created", "");
  state["updated"] = manifest.value("updated", "");
  if (!holder.alive) return state;
  state["driver"] = {{"host", holder.host}, {"pid", holder.pid}, {"since", holder.since}};
  if (Json live = parallel::read_status(folder); live.is_object()) state["live"] = std::move(live);
  return state;
}

int exit_code_of(const Json& state) {
  if (state.value("failed", std::uint64_t{0}) > 0) return static_cast<int>(ExitCode::kItemsFailed);
  return static_cast<int>(state.value("state", "") == "done" ? ExitCode::kDone
                                                             : ExitCode::kStoppedResumable);
}

}  // namespace tutti::apps
