// Files that are whole or absent: atomic writes, durable appends, and the errors with names in
// them.
//
// All functions throw IoError with the path and the system's words. None keeps state; all are
// thread-safe unless two callers use one path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tutti {

// An owned file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

std::string read_file(const std::filesystem::path& path);
// The rest of an open file; `name` is for the error.
std::string read_all(int fd, const std::filesystem::path& name);

// Readers see the old file or the new one, also after a power cut: writes a temporary file beside
// `path`, fsyncs it, renames it over, fsyncs the folder. The temporary file is removed on failure.
void write_file_atomic(const std::filesystem::path& path, std::string_view content,
                       unsigned mode = 0644);

// The same for content too large to hold: `write` gets the descriptor of the temporary file.
void write_file_atomic(const std::filesystem::path& path, const std::function<void(int fd)>& write,
                       unsigned mode = 0644);

// Writes all bytes to `fd`, whatever EINTR and short writes do; `name` is for the error.
void write_all(int fd, std::string_view bytes, const std::filesystem::path& name);
void fsync_file(int fd, const std::filesystem::path& name);
void fsync_folder(const std::filesystem::path& folder);

void make_folders(const std::filesystem::path& folder);

// A folder of this user alone, under $TMPDIR or another folder, that is removed with everything in it
// at the end of the scope (of the process that made it: a forked child leaves it alone).
class TempFolder {
 public:
  explicit TempFolder(std::string_view prefix = "tutti", const std::filesystem::path& under = {});
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int owner_ = 0;  // the process that made it
};

// Is this the temporary file of a write_file_atomic, perhaps left by one that was killed?
bool is_temporary_name(const std::filesystem::path& path);

}  // namespace tutti
