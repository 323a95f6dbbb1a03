// One driver per output folder. The lock is a file that says who holds it (host, pid, start time)
// and a counter that he keeps raising; it is taken over when the holder is dead (same machine: the
// process is gone; another machine: the counter has not changed for a while, by our own clock), so
// a kill -9 never needs a person to clean up.
//
// Two drivers can hold it one after the other without knowing: the first was stopped for minutes
// and wakes up. So every driver writes into files of its own (token() is in their names), and asks
// check() before it writes anything that all share.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "tutti/core/json.h"
#include "tutti/parallel/folder/beat_watch.h"

namespace tutti::parallel {

class FolderLock {
 public:
  // Longer than file systems of clusters keep old directory entries for true.
  static constexpr double kPatience = 75;

  // Throws IoError naming the holder when it is alive. A holder on another host is watched for up
  // to `patience_s` first.
  explicit FolderLock(const std::filesystem::path& folder, double patience_s = kPatience);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  // Call now and then. Throws IoError when somebody else has taken the folder over.
  void beat();
  // Call before writing what others write too. Reads the file only after a pause in which it could
  // have been taken over.
  void check();
  // Different for every holder there ever was.
  const std::string& token() const noexcept { return nonce_; }

  struct Holder {
    bool alive = false;
    bool sure = true;  // false: of another host, and not watched for long enough
    std::string host;
    long pid = 0;
    std::string since;
  };
  // Who holds the folder, if anybody; for `tutti status` and `tutti cancel`. One look at another
  // host's lock tells nothing: then he counts as alive.
  static Holder holder(const std::filesystem::path& folder);
  // Removes the lock if it is this process's own, whoever holds the object: for a process that ends
  // without destructors.
  static void forget(const std::filesystem::path& folder) noexcept;
  // The same with what earlier looks have shown.
  static Holder holder(const std::filesystem::path& folder, BeatWatch& watch);
  static std::filesystem::path path(const std::filesystem::path& folder);

 private:
  std::string content() const;
  bool try_create() const;
  void read_again();

  const std::filesystem::path path_;
  std::string nonce_;
  std::string since_;
  std::uint64_t beat_ = 0;
  double last_seen_ = 0;  // ours, by a clock that goes on while the machine sleeps
};

// Beats while its thread is busy with something long (a merge). Only it may use the lock meanwhile;
// a takeover is noticed at the next beat or check after it.
class BeatKeeper {
 public:
  explicit BeatKeeper(FolderLock& lock);
  ~BeatKeeper();
  BeatKeeper(const BeatKeeper&) = delete;
  BeatKeeper& operator=(const BeatKeeper&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace tutti::parallel
