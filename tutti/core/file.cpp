#include "tutti/core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/program.h"
#include "tutti/core/replace_file.h"

namespace tutti {
namespace fs = std::filesystem;

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) reset(other.release());
  return *this;
}

int UniqueFd::release() noexcept { return std::exchange(fd_, -1); }

void UniqueFd::reset(int fd) noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

std::string read_file(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("cannot open " + path.string(), errno);
  return read_all(fd.get(), path);
}

std::string read_all(int fd, const fs::path& name) {
  std::string content;
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
    throw_errno("cannot read " + name.string(), EISDIR);
  if (info.st_size > 0) content.reserve(static_cast<std::size_t>(info.st_size));
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("cannot read " + name.string(), errno);
    if (n == 0) return content;
    content.append(buffer, static_cast<std::size_t>(n));
  }
}

void write_all(int fd, std::string_view bytes, const fs::path& name) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw_errno("cannot write " + name.string(), errno,
                  errno == ENOSPC ? "free some disk space" : "");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void fsync_file(int fd, const fs::path& name) {
  // EINVAL: the target (a pipe, some network mounts) cannot be synced; nothing better can be done.
  if (::fsync(fd) != 0 && errno != EINVAL) throw_errno("cannot fsync " + name.string(), errno);
}

void fsync_folder(const fs::path& folder) {
  const fs::path where = folder.empty() ? fs::path(".") : folder;
  UniqueFd fd(::open(where.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno("cannot open folder " + where.string(), errno);
  fsync_file(fd.get(), where);
}

namespace {

constexpr char kTemporaryMark[] = ".tmp.";

// Host, pid and a serial number keep writers of one path apart; containers may share all three, and
// then the file that is there already says so.
UniqueFd create_temporary(const fs::path& path, unsigned mode, fs::path& temporary) {
  static std::atomic<unsigned> serial{0};
  const std::string host = host_name();
  for (int attempt = 0;; ++attempt) {
    temporary =
        fmt::format("{}{}{}.{}.{}", path.string(), kTemporaryMark, host, ::getpid(), serial++);
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (fd) return fd;
    if (errno != EEXIST || attempt == 1000)
      throw_errno("cannot create " + temporary.string(), errno);
  }
}

}  // namespace

bool is_temporary_name(const fs::path& path) {
  return path.filename().string().find(kTemporaryMark) != std::string::npos;
}

static void write_and_rename(const fs::path& path, const std::function<void(int fd)>& write,
                             unsigned mode, bool durable) {
  fs::path temporary;
  UniqueFd fd = create_temporary(path, mode, temporary);
  try {
    write(fd.get());
    if (durable) fsync_file(fd.get(), temporary);
    fd.reset();
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      throw_errno("cannot rename to " + path.string(), errno);
  } catch (...) {  // whatever went wrong, leave no half-written file behind
    ::unlink(temporary.c_str());
    throw;
  }
  if (durable) fsync_folder(path.parent_path());
}

void write_file_atomic(const fs::path& path, const std::function<void(int fd)>& write,
                       unsigned mode) {
  write_and_rename(path, write, mode, /*durable=*/true);
}

void write_file_atomic(const fs::path& path, std::string_view content, unsigned mode) {
  write_file_atomic(
      path, [&](int fd) { write_all(fd, content, path); }, mode);
}

void replace_file(const fs::path& path, std::string_view content) {
  write_and_rename(
      path, [&](int fd) { write_all(fd, content, path); }, 0644, /*durable=*/false);
}

void make_folders(const fs::path& folder) {
  std::error_code status;
  fs::create_directories(folder, status);
  if (status) throw_errno("cannot create folder " + folder.string(), status.value());
}

TempFolder::TempFolder(std::string_view prefix, const fs::path& under) : owner_(::getpid()) {
  const fs::path where = under.empty() ? fs::temp_directory_path() : under;
  std::string pattern = fmt::format("{}/{}-XXXXXX", where.string(), prefix);
  if (::mkdtemp(pattern.data()) == nullptr)
    throw_errno("cannot create a temporary folder " + pattern, errno);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  if (::getpid() != owner_) return;
  std::error_code ignored;  // a destructor has nobody to tell
  fs::remove_all(path_, ignored);
}

}  // namespace tutti
