#include "tutti/parallel/worker/item_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/subprocess.h"
#include "tutti/parallel/wire/worker_env.h"
#include "tutti/parallel/worker/cgroup.h"

namespace tutti::parallel {
namespace {

// Of a process that answers for its descendants; set once, before any thread exists.
pid_t keeper_pid = 0;
Cgroup own_cgroup;

std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> found;
  DIR* entries = ::opendir(folder.c_str());
  if (entries == nullptr) return found;
  while (const dirent* entry = ::readdir(entries))
    if (const pid_t number = std::atoi(entry->d_name); number > 0) found.push_back(number);
  ::closedir(entries);
  return found;
}

// Empty when the process has gone, which may be in the middle of reading.
std::string proc_file(pid_t pid, const char* name) try {
  return read_file(fmt::format("/proc/{}/{}", pid, name));
} catch (const IoError&) {
  return "";
}

bool carries(pid_t pid, const std::string& mark) {
  const std::string environment = proc_file(pid, "environ");
  const std::string entry = fmt::format("{}={}", worker_env::kMark, mark);
  return environment.starts_with(entry + '\0') ||
         environment.find('\0' + entry + '\0') != std::string::npos;
}

// Until none is found: a process may start another while we look.
void end_marked(const std::string& mark) {
  for (int clean = 0, looks = 0; clean < 2 && looks < 100; ++looks) {
    bool found = false;
    for (const pid_t pid : numbers_in("/proc"))
      if (carries(pid, mark)) {
        found = true;
        ::kill(pid, SIGKILL);
      }
    clean = found ? 0 : clean + 1;
    ::usleep(2000);
  }
}

[[noreturn]] void be_keeper(pid_t worker, pid_t driver, pid_t group, const std::string& mark,
                            int pipe_end, const std::filesystem::path& temporary) {
  ::setsid();  // who ends the worker's group does not mean us
  ::prctl(PR_SET_NAME, "tutti-keeper");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);  // only SIGKILL ends it early
  // Nothing but the pipe: the keeper must not hold the worker's log or terminal open.
  for (int fd = 0; fd < 1024; ++fd)
    if (fd != pipe_end) ::close(fd);
  const int watch = static_cast<int>(::syscall(SYS_pidfd_open, worker, 0U));
  pollfd parent{static_cast<int>(::syscall(SYS_pidfd_open, driver, 0U)), POLLIN, 0};
  // Without a pidfd the pipe must do; children that never started a program hold it open too.
  pollfd ended{watch >= 0 ? watch : pipe_end, POLLIN, 0};
  while (::getppid() == worker && ::poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  own_cgroup.end_all();
  if (group != 0) ::kill(-group, SIGKILL);
  end_marked(mark);      // also those that were moved out of the cgroup
  std::error_code gone;  // other keepers are at it, too
  if (!temporary.empty() && ::poll(&parent, 1, 0) == 1)
    std::filesystem::remove_all(temporary, gone);
  ::_exit(0);
}

std::uint64_t resident_bytes(pid_t pid) {
  std::ifstream statm(fmt::format("/proc/{}/statm", pid));
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
}

// Shared pages in equal parts for those who share them.
std::uint64_t proportional_bytes(pid_t pid) {
  const std::string text = proc_file(pid, "smaps_rollup");
  const auto at = text.find("\nPss:");
  return at == text.npos ? resident_bytes(pid)  // an old kernel, or gone
                         : std::strtoull(text.c_str() + at + 5, nullptr, 10) << 10;
}

std::vector<pid_t> children_of(pid_t pid, pid_t thread) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/children", pid, thread));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

void add_tree(pid_t pid, std::vector<pid_t>& all, int depth = 0) {
  all.push_back(pid);
  if (depth == 16) return;
  for (const pid_t thread : numbers_in(fmt::format("/proc/{}/task", pid)))
    for (const pid_t child : children_of(pid, thread)) add_tree(child, all, depth + 1);
}

// Of the main thread, which runs the items and inherits orphans; not the keeper.
std::vector<pid_t> living_children() {
  std::vector<pid_t> children = children_of(::getpid(), ::getpid());
  std::erase(children, keeper_pid);
  return children;
}

}  // namespace

void answer_for_descendants(const std::filesystem::path& temporary) {
  std::random_device random;
  const std::string mark = fmt::format("{}-{:08x}{:08x}", ::getpid(), random(), random());
  ::setenv(worker_env::kMark, mark.c_str(), 1);  // seen by those who come after, not by ourselves
  int fds[2];
  if (::pipe(fds) != 0) throw_errno("cannot make a pipe", errno);
  const pid_t worker = ::getpid();
  const pid_t driver = ::getppid();
  const pid_t group = ::getpgrp() == worker ? worker : 0;
  own_cgroup = Cgroup::make(worker);
  keeper_pid = ::fork();
  if (keeper_pid < 0) throw_errno("cannot fork", errno);
  if (keeper_pid == 0) be_keeper(worker, driver, group, mark, fds[0], temporary);
  own_cgroup.enter();  // the keeper stays outside
  ::close(fds[0]);
  ::fcntl(fds[1], F_SETFD, FD_CLOEXEC);  // held until this process ends
}

std::vector<pid_t> adopt_orphans() {
  if (keeper_pid == 0) return {};
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return living_children();
}

void end_children_except(const std::vector<pid_t>& spare) {
  if (keeper_pid == 0) return;
  for (int round = 0; round < 1000; ++round) {
    std::vector<pid_t> strays = living_children();
    std::erase_if(strays, [&](pid_t pid) {
      return std::find(spare.begin(), spare.end(), pid) != spare.end();
    });
    if (strays.empty()) return;
    for (const pid_t pid : strays) ::kill(pid, SIGKILL);
    bool gone = false;
    for (const pid_t pid : strays) gone = ::waitpid(pid, nullptr, WNOHANG) == pid || gone;
    if (!gone) ::usleep(500);
  }
  log::warning("processes of an item do not end");
}

std::uint64_t tree_memory_bytes(pid_t pid, std::uint64_t limit) {
  if (pid == ::getpid())
    if (const auto bytes = own_cgroup.memory_bytes()) return *bytes;
  const std::lock_guard lock(spawn_mutex());
  std::vector<pid_t> tree;
  add_tree(pid, tree);
  std::erase(tree, keeper_pid);
  std::uint64_t resident = 0;
  for (const pid_t one : tree) resident += resident_bytes(one);
  if (resident <= limit || (limit == 0 && tree.size() == 1)) return resident;
  std::uint64_t used = 0;
  for (const pid_t one : tree) used += proportional_bytes(one);
  return std::min(used, resident);
}

}  // namespace tutti::parallel
