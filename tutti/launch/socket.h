// TCP with deadlines and names: every error is a CommError that says who the peer was.
//
// All descriptors are close-on-exec and TCP_NODELAY; nothing raises SIGPIPE. Functions are
// thread-safe as long as two threads do not use one descriptor; Channel says its own rules.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/core/program.h"
#include "tutti/launch/wire.h"

namespace tutti::launch {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_in(std::chrono::duration<double> time) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(time);
}
// For poll(): rounded up, at least 0, at most a minute (then ask again).
int milliseconds_left(Deadline deadline) noexcept;

struct Address {
  std::string host;
  int port = 0;
  std::string text() const;  // "node1:4242", "[::1]:4242"
  // Throws ConfigError naming `what` when it is not host:port.
  static Address parse(std::string_view text, const std::string& what);
};

// Listens on `host` ("" = every interface, IPv4 and IPv6) and `port` (0 = any free one);
// `bound_port` says which. Throws CommError.
UniqueFd listen_tcp(const std::string& host, int port, int& bound_port);
// Empty fd when nobody waits. The new socket is non-blocking.
UniqueFd accept_tcp(int listener);
// Non-blocking socket, connected. Throws CommError with the system's words.
UniqueFd connect_tcp(const Address& address, Deadline deadline);

// Addresses under which others may reach this machine: those of `interface` if given, else the host
// name and every non-loopback address.
std::vector<std::string> own_addresses(const std::string& interface = {});

// Both ends of a connection as numbers ("10.0.0.3"); empty where the kernel does not say.
struct Ends {
  std::string own;
  std::string peer;
};
Ends connection_ends(int fd);

// A framed connection. receive() belongs to one thread; send() and flush() are for one thread too.
class Channel {
 public:
  Channel() = default;
  Channel(UniqueFd fd, std::size_t max_frame) : fd_(std::move(fd)), max_frame_(max_frame) {}
  int fd() const noexcept { return fd_.get(); }
  void set_max_frame(std::size_t max_frame) noexcept { max_frame_ = max_frame; }
  // Takes what has arrived. False: the peer has closed (frames before that are still given).
  // Throws CommError for garbage or a frame over the limit.
  // At most `max_frames`: the rest waits here, unseen by poll(), for the next call.
  bool receive(std::vector<Frame>& frames, std::size_t max_frames = SIZE_MAX);
  // Queues the frame and sends what the kernel takes at once. False: the peer is gone.
  bool send(const Frame& frame);
  bool flush();
  bool wants_write() const noexcept { return sent_ < out_.size(); }
  std::size_t queued() const noexcept { return out_.size() - sent_; }
  void close() noexcept { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::size_t max_frame_ = 0;
  std::string in_;
  std::string out_;
  std::size_t sent_ = 0;
};

// The blocking forms, for handshakes and clients. Throw CommError; `peer` is for the text.
Frame receive_one(Channel& channel, Deadline deadline, const std::string& peer);
void send_one(Channel& channel, const Frame& frame, Deadline deadline, const std::string& peer);

}  // namespace tutti::launch
