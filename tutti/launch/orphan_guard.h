// A tiny process that outlives a kill -9 of its maker just long enough to kill what the maker had
// started.
//
// The parent-death signal reaches a rank but not the rank's own children (a data loader, a shell's
// background job). The guard holds one end of a pipe; when the other end closes, because its maker
// died in whatever way, it kills the process groups it was told of and ends.
#pragma once

#include <sys/types.h>

#include "tutti/core/file.h"

namespace tutti::launch {

class OrphanGuard {
 public:
  // Forks: make it before the process has threads. Throws IoError.
  OrphanGuard();
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;
  // For Command::announce_fd: a group is watched before its first program runs. (Telling the guard
  // afterwards leaves a moment in which a kill of the maker makes orphans.)
  int announce_fd() const { return pipe_.get(); }
  // The group is known to be gone: its number may belong to others soon.
  void forget(pid_t group);

 private:
  pid_t pid_ = -1;
  UniqueFd pipe_;
};

}  // namespace tutti::launch
