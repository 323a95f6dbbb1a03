// A cgroup (version 2) of a worker's own: whatever its items start is in it and cannot leave it by
// sessions, double forks or an empty environment, so that all of it can be ended at once, and its
// memory counted in one look. Where the system does not let us make one (most batch systems, old
// kernels) there is none, and the worker does without (item_processes.h). Internal to the room.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tutti::parallel {

class Cgroup {
 public:
  Cgroup() = default;  // none
  // One below that of the calling process; none where that is not permitted.
  static Cgroup make(pid_t for_whom);

  explicit operator bool() const noexcept { return !folder_.empty(); }
  // Moves the calling process, and so all that it will start, into it; where that is not permitted,
  // it is removed and there is none.
  void enter();
  // Anonymous and shared memory of all in it; the cache of files they read does not count. Nothing
  // where the memory controller is not ours.
  std::optional<std::uint64_t> memory_bytes() const;
  // Ends all in it and removes it. The caller must not be in it.
  void end_all() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace tutti::parallel
