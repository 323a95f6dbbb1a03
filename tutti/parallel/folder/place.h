// A file or folder that must stay where it is while somebody works in it: told from another one of
// the same name by its inode, so that what was removed, renamed or put in its place by others is
// noticed before anything is written there. Internal to the room.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "tutti/core/file.h"

namespace tutti::parallel {

class Place {
 public:
  // What is there now. Throws IoError when nothing is.
  explicit Place(std::filesystem::path path);
  // Throws IoError when it is gone, or another one is there.
  void check() const;

 private:
  std::string renamed_to() const;  // empty: it is gone, or nobody knows

  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  UniqueFd itself_;  // so that it is known where it has gone; none: the message says less
};

}  // namespace tutti::parallel
