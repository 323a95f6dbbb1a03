#include "tutti/parallel/worker/cgroup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <random>
#include <string>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/parallel/wire/worker_env.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

std::string text_of(const fs::path& path) try {
  return read_file(path);
} catch (const IoError&) {  // not there, or not for us
  return "";
}

bool put(const fs::path& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Where version 2 is mounted, and which part of it: "36 32 0:29 /part /sys/fs/cgroup rw - cgroup2 ..."
std::optional<std::pair<fs::path, std::string>> mount_point() {
  for (const std::string& line : split(text_of("/proc/self/mountinfo"), '\n')) {
    if (line.find(" - cgroup2 ") == line.npos) continue;
    const auto words = split_words(line);
    if (words.size() > 4) return std::pair(fs::path(words[4]), words[3]);
  }
  return std::nullopt;
}

// The folder of this process's own cgroup; empty: it is not to be seen.
fs::path own_folder() {
  const auto mount = mount_point();
  if (!mount) return {};
  for (const std::string& line : split(text_of("/proc/self/cgroup"), '\n')) {
    if (!line.starts_with("0::")) continue;
    std::string path = line.substr(3);
    const std::string& root = mount->second;
    if (root != "/") {
      if (!path.starts_with(root)) return {};
      path = path.substr(root.size());
    }
    return mount->first / fs::path(path).relative_path();
  }
  return {};
}

}  // namespace

Cgroup Cgroup::make(pid_t for_whom) {
  const char* wish = std::getenv(worker_env::kCgroup);
  if (wish != nullptr && std::string_view(wish) == "0") return {};
  const fs::path above = own_folder();
  if (above.empty()) return {};
  Cgroup made;
  std::random_device random;
  made.folder_ = above / fmt::format("tutti-worker-{}-{:08x}", for_whom, random());
  if (::mkdir(made.folder_.c_str(), 0755) != 0) return {};
  return made;
}

void Cgroup::enter() {
  if (folder_.empty() || put(folder_ / "cgroup.procs", "0")) return;
  ::rmdir(folder_.c_str());
  folder_.clear();
}

std::optional<std::uint64_t> Cgroup::memory_bytes() const {
  if (folder_.empty()) return std::nullopt;
  std::optional<std::uint64_t> bytes;
  for (const std::string& line : split(text_of(folder_ / "memory.stat"), '\n'))
    if (line.starts_with("anon ") || line.starts_with("shmem "))
      bytes = bytes.value_or(0) + std::strtoull(line.c_str() + line.find(' '), nullptr, 10);
  return bytes;
}

void Cgroup::end_all() const {
  if (folder_.empty()) return;
  for (int look = 0; look < 5000; ++look) {
    if (::rmdir(folder_.c_str()) == 0 || errno == ENOENT) return;
    if (!put(folder_ / "cgroup.kill", "1"))  // a kernel before 5.14
      for (const std::string& pid : split(text_of(folder_ / "cgroup.procs"), '\n'))
        if (const pid_t number = std::atoi(pid.c_str()); number > 0) ::kill(number, SIGKILL);
    ::usleep(2000);
  }
}

}  // namespace tutti::parallel
