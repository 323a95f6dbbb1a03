#include "tutti/launch/orphan_guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

constexpr int kMaxGroups = 4096;

void close_all_but(int keep) noexcept {
  for (int fd = 0; fd < keep; ++fd) ::close(fd);
  if (::syscall(SYS_close_range, static_cast<unsigned>(keep) + 1, ~0U, 0U) != 0) {
    for (int fd = keep + 1; fd < 4096; ++fd) ::close(fd);
  }
}

// Async-signal-safe only: the fork copied whatever locks other threads held.
[[noreturn]] void keep_watch(int pipe) noexcept {
  ::setsid();  // signals to our maker's group are not for us
  ::prctl(PR_SET_NAME, "tutti-guard");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  close_all_but(pipe);
  static pid_t groups[kMaxGroups];
  int num_groups = 0;
  pid_t message = 0;
  for (;;) {
    const ssize_t n = ::read(pipe, &message, sizeof message);
    if (n < 0 && errno == EINTR) continue;
    if (n != static_cast<ssize_t>(sizeof message)) break;
    if (message > 1 && num_groups < kMaxGroups) groups[num_groups++] = message;
    for (int i = 0; message < 0 && i < num_groups; ++i) {
      if (groups[i] == -message) groups[i--] = groups[--num_groups];
    }
  }
  for (int i = 0; i < num_groups; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe", errno);
  UniqueFd read_end(fds[0]);
  pipe_.reset(fds[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("cannot fork", errno);
  if (pid_ == 0) {
    ::close(fds[1]);
    keep_watch(fds[0]);
  }
}

OrphanGuard::~OrphanGuard() {
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void OrphanGuard::forget(pid_t group) {
  const pid_t message = -group;
  write_all(pipe_.get(), {reinterpret_cast<const char*>(&message), sizeof message}, "guard");
}

}  // namespace tutti::launch
