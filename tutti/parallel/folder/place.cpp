#include "tutti/parallel/folder/place.h"

#include <fcntl.h>
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
  itself_.reset(::open(path_.c_str(), O_PATH | O_CLOEXEC));
}

std::string Place::renamed_to() const {
  std::error_code unknown;
  const auto name =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", itself_.get()), unknown);
  struct stat info {};
  const bool there = !unknown && ::stat(name.c_str(), &info) == 0 && info.st_dev == device_ &&
                     info.st_ino == inode_;  // and not "NAME (deleted)"
  return there && name != path_ ? name.string() : "";
}

void Place::check() const {
  constexpr char kFix[] =
      "nobody may touch the output folder while a run works in it; run it again";
  struct stat info {};
  const bool gone = ::stat(path_.c_str(), &info) != 0;
  const int why = errno;
  const bool another = !gone && (info.st_dev != device_ || info.st_ino != inode_);
  if (const std::string now = gone || another ? renamed_to() : ""; !now.empty())
    throw IoError(fmt::format("{} was renamed to {} while the run was going", path_.string(), now),
                  "what it has done is kept there: move it back and run the same command again");
  if (gone)
    throw IoError(fmt::format("{} was removed while the run was going ({})", path_.string(),
                              std::strerror(why)),
                  kFix);
  if (another)
    throw IoError(fmt::format("{} was replaced while the run was going (the new one belongs to "
                              "user {})",
                              path_.string(), info.st_uid),
                  kFix);
}

}  // namespace tutti::parallel
