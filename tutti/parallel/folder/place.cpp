#include "tutti/parallel/folder/place.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::parallel {

Place::Place(std::filesystem::path path) : path_(std::move(path)) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) throw_errno("cannot stat " + path_.string(), errno);
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

void Place::check() const {
  constexpr char kFix[] =
      "nobody may touch the output folder while a run works in it; run it again";
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0)
    throw IoError(fmt::format("{} was removed while the run was going ({})", path_.string(),
                              std::strerror(errno)),
                  kFix);
  if (info.st_dev != device_ || info.st_ino != inode_)
    throw IoError(fmt::format("{} was replaced while the run was going (the new one belongs to "
                              "user {})",
                              path_.string(), info.st_uid),
                  kFix);
}

}  // namespace tutti::parallel
