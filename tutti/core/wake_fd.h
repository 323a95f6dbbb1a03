// A flag that poll() can wait for: set by any thread or signal handler, cleared by who waits.
//
//   WakeFd wake;
//   pollfd fds[] = {{wake.fd(), POLLIN, 0}};
//   ... elsewhere: wake.set();
//
// Thread-safe.
#pragma once

#include "tutti/core/file.h"

namespace tutti {

class WakeFd {
 public:
  WakeFd();  // throws IoError
  void set() const noexcept;
  void clear() const noexcept;
  int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// The same of a descriptor alone, for signal handlers, which can only reach globals.
void set_wake_fd(int fd) noexcept;
void clear_wake_fd(int fd) noexcept;

}  // namespace tutti
