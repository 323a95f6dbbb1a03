#include "tutti/core/file_trust.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/log.h"

namespace tutti {
namespace fs = std::filesystem;
namespace {

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

bool is_ours(uid_t owner) {
  if (owner == 0 || owner == ::geteuid()) return true;
  const char* also = std::getenv(kTrustedUserVariable);
  return also != nullptr && *also != '\0' &&
         std::strtoul(also, nullptr, 10) == static_cast<unsigned long>(owner);
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why, const std::string& fix) {
  throw IoError(fmt::format("{} is not to be trusted: {}; it could make this user run anything",
                            path.string(), why),
                fix);
}

void check_owner(const fs::path& path, const struct stat& info) {
  if (is_ours(info.st_uid)) return;
  refuse(path,
         fmt::format("it belongs to another user (owner {}, we are {})", info.st_uid, ::geteuid()),
         "use a folder of your own");
}

void check_mode(const fs::path& path, const struct stat& info) {
  if ((info.st_mode & kOthersWrite) == 0) return;
  refuse(path, fmt::format("others may write it (mode {:04o})", info.st_mode & 07777U),
         "start the run again; look who changed it, then chmod go-w " + path.string());
}

UniqueFd open_folder(const fs::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd) return fd;
  const int failure = errno;
  struct stat info {};
  if (::lstat(folder.c_str(), &info) == 0 && S_ISLNK(info.st_mode))
    refuse(folder, fmt::format("it is a symbolic link (owner {})", info.st_uid),
           "use the folder it leads to");
  throw_errno("cannot open folder " + folder.string(), failure);
}

struct stat stat_of(int fd, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_errno("cannot stat " + path.string(), errno);
  return info;
}

// A link in a folder that many may write leads where its owner wants.
void check_links_on_the_way(const fs::path& path) {
  fs::path at;
  for (const fs::path& part : fs::absolute(path).lexically_normal()) {
    const fs::path above = at;
    at /= part;
    struct stat info {};
    struct stat folder {};
    if (::lstat(at.c_str(), &info) != 0 || !S_ISLNK(info.st_mode) || is_ours(info.st_uid)) continue;
    if (::stat(above.c_str(), &folder) == 0 && (folder.st_mode & kOthersWrite) != 0)
      refuse(at,
             fmt::format("it is a symbolic link of another user (owner {}) in a folder that "
                         "many may write",
                         info.st_uid),
             "name the folder it leads to");
  }
}

}  // namespace

void make_private_folder(const fs::path& folder) {
  if (folder.has_parent_path()) make_folders(folder.parent_path());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw_errno("cannot create folder " + folder.string(), errno);
  const UniqueFd fd = open_folder(folder);
  const struct stat info = stat_of(fd.get(), folder);
  check_owner(folder, info);
  // A mode from before us, a set-group bit of the folder above, or a default access list.
  if ((info.st_mode & 07777U) == 0700U) return;
  if (::fchmod(fd.get(), 0700) != 0 && (info.st_mode & 077) != 0)
    throw_errno("cannot make " + folder.string() + " private", errno);
}

void make_own_folder(const fs::path& folder) {
  check_links_on_the_way(folder);  // before anything is made where one leads
  std::error_code unknown;
  const bool was_there = fs::exists(folder, unknown);
  make_folders(folder);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno("cannot open folder " + folder.string(), errno);
  check_links_on_the_way(folder);
  const struct stat info = stat_of(fd.get(), folder);
  check_owner(folder, info);
  if ((info.st_mode & kOthersWrite) == 0 || (info.st_mode & S_ISVTX) != 0) return;
  if (::fchmod(fd.get(), (info.st_mode & 07777U) & ~kOthersWrite) != 0)
    check_mode(folder, info);
  else if (was_there)
    log::warning(
        "{}: only you may write in it from now on (others may read): what is there decides what "
        "workers run",
        folder.string());
}

UniqueFd open_trusted_file(const fs::path& path, const fs::path& top) {
  fs::path folder = top.empty() ? path.parent_path() : top;
  check_links_on_the_way(folder);
  // From descriptor to descriptor: what was looked at is what is used, whoever renames meanwhile.
  UniqueFd folder_fd = open_folder(folder);
  const fs::path below = path.lexically_relative(folder);
  for (auto part = below.begin();; ++part) {
    const struct stat info = stat_of(folder_fd.get(), folder);
    check_owner(folder, info);
    check_mode(folder, info);
    if (std::next(part) == below.end()) break;
    folder /= *part;
    UniqueFd next(
        ::openat(folder_fd.get(), part->c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) throw_errno("cannot open folder " + folder.string(), errno);
    folder_fd = std::move(next);
  }
  UniqueFd fd(
      ::openat(folder_fd.get(), path.filename().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd && errno == ELOOP) refuse(path, "it is a symbolic link", "start the run again");
  if (!fd) throw_errno("cannot open " + path.string(), errno);
  const struct stat info = stat_of(fd.get(), path);
  if (!S_ISREG(info.st_mode)) refuse(path, "it is no plain file", "start the run again");
  check_owner(path, info);
  check_mode(path, info);
  return fd;
}

std::string read_trusted_file(const fs::path& path, const fs::path& top) {
  return read_all(open_trusted_file(path, top).get(), path);
}

}  // namespace tutti
