#include "tutti/core/wake_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "tutti/core/error.h"

namespace tutti {

WakeFd::WakeFd() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!fd_) throw_errno("cannot make an eventfd", errno);
}

void WakeFd::set() const noexcept { set_wake_fd(fd_.get()); }
void WakeFd::clear() const noexcept { clear_wake_fd(fd_.get()); }

void set_wake_fd(int fd) noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(fd, &one, sizeof one);
}

void clear_wake_fd(int fd) noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto n = ::read(fd, &count, sizeof count);
}

}  // namespace tutti
