// Whose logs a folder has: several experiments may log under one save_dir, and each goes on in its
// own files only. A run has an id, kept in its exp_dir; small files beside the logs name it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tutti::trainer {

inline constexpr const char* kEventFiles = "events.out.";  // what TensorBoard's begin with
inline constexpr const char* kMlflowNote = ".mlflow_run";  // in exp_dir: which run of the store

class LogFolders {
 public:
  explicit LogFolders(const std::filesystem::path& exp_dir);

  // SAVE_DIR/NAME/VERSION; a number N is version_N. Without a version it is the version_N this run
  // has, or the next one after all that are there, as Lightning counts.
  std::filesystem::path choose(const std::string& save_dir, const std::optional<std::string>& name,
                               const std::optional<std::string>& version) const;
  // Gives `folder` back. From now on its files of that name (all that begin with it, where it ends
  // with a dot) are this run's; those of another are moved to FOLDER/before first.
  std::filesystem::path claim(const std::filesystem::path& folder, const std::string& name) const;

  // The run that begins in exp_dir is another one than before.
  static void forget(const std::filesystem::path& exp_dir);

 private:
  std::string id_;
};

}  // namespace tutti::trainer
