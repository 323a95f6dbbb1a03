// One driver per output folder. The lock is a file that says who holds it (host, pid, start time,
// heartbeat); it is taken over when the holder is dead (same machine: the process is gone; another
// machine: no heartbeat for a minute), so a kill -9 never needs a person to clean up.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "tutti/core/json.h"

namespace tutti::parallel {

class FolderLock {
 public:
  // Throws IoError naming the holder when it is alive.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  // Call now and then. Throws IoError when somebody else has taken the folder over.
  void beat();

  struct Holder {
    bool alive = false;
    std::string host;
    long pid = 0;
    std::string since;
  };
  // Who holds the folder, if anybody; for `tutti status` and `tutti cancel`.
  static Holder holder(const std::filesystem::path& folder);
  // Removes the lock if it is this process's own, whoever holds the object: for a process that ends
  // without destructors.
  static void forget(const std::filesystem::path& folder) noexcept;
  static std::filesystem::path path(const std::filesystem::path& folder);

 private:
  std::string content() const;
  bool try_create() const;

  const std::filesystem::path path_;
  std::string nonce_;
  std::string since_;
  std::chrono::steady_clock::time_point last_beat_{};
};

}  // namespace tutti::parallel
