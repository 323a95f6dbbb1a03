#include "tutti/launch/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "tutti/core/error.h"
#include "tutti/core/status.h"

namespace tutti::launch {

constexpr std::size_t kMaxLine = 64 << 10;
constexpr std::size_t kTailLines = 20;
constexpr std::size_t kTailLine = 2000;

LinePump::LinePump(std::string prefix, int target_fd)
    : prefix_(std::move(prefix)), target_fd_(target_fd), terminal_(::isatty(target_fd) == 1) {}

UniqueFd LinePump::open() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe", errno);
  pipe_.reset(fds[0]);
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);  // our end only: the rank may block on a full pipe
  return UniqueFd(fds[1]);
}

bool LinePump::pump() {
  if (!pipe_) return false;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(pipe_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    partial_.append(buffer, static_cast<std::size_t>(n));
    std::size_t begin = 0;
    for (;;) {
      // A progress bar ends its lines with a carriage return.
      std::size_t end = partial_.find_first_of("\r\n", begin);
      if (end == std::string::npos) {
        if (partial_.size() - begin < kMaxLine) break;
        end = begin + kMaxLine - 1;
      }
      emit(std::string_view(partial_).substr(begin, end + 1 - begin));
      begin = end + 1;
    }
    partial_.erase(0, begin);
    if (n < static_cast<ssize_t>(sizeof buffer)) return true;  // let the others have their turn
  }
}

void LinePump::finish() {
  while (pump() && pipe_) {
    pollfd more{pipe_.get(), POLLIN, 0};
    if (::poll(&more, 1, 0) <= 0 || (more.revents & POLLIN) == 0) break;
  }
  if (!partial_.empty()) emit(partial_ + "\n");
  partial_.clear();
  pipe_.reset();
}

void LinePump::emit(std::string_view line) {
  const bool own = line.front() == log::kOwnLine;  // it says by itself whose it is
  if (own) line.remove_prefix(1);
  std::string text = own ? "" : prefix_;
  text += line;
  if (!own || line.back() != '\r') {  // what is drawn over is nobody's last word
    last_.emplace_back(line.substr(0, kTailLine));
    if (last_.size() > kTailLines) last_.pop_front();
    // It may be written over a longer line.
    if (terminal_ && text.back() == '\n') text.insert(text.size() - 1, "\x1b[K");
  }
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t n = ::write(target_fd_, left.data(), left.size());
    if (n < 0 && errno == EAGAIN) {  // our stdout may be non-blocking (shared with a terminal)
      pollfd room{target_fd_, POLLOUT, 0};
      ::poll(&room, 1, 1000);
      continue;
    }
    if (n < 0 && errno != EINTR) return;  // nobody reads us any more; the ranks go on
    if (n > 0) left.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string LinePump::tail() const {
  std::string text;
  for (const std::string& line : last_) text += line;
  return text;
}

}  // namespace tutti::launch
