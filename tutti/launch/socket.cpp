#include "tutti/launch/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int rc = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(), port.c_str(),
                               &hints, &found);
  if (rc != 0) {
    throw CommError(fmt::format("cannot find host '{}': {}", address.host, ::gai_strerror(rc)));
  }
  return {found, ::freeaddrinfo};
}

void set_options(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A peer whose machine lost power sends no FIN; the kernel then tells us within about 20 s.
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int idle = 10;
  const int interval = 5;
  const int count = 2;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

UniqueFd try_listen(const addrinfo& info, int& failure) {
  UniqueFd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  const int off = 0;
  if (fd) {
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (info.ai_family == AF_INET6) {
      ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (::bind(fd.get(), info.ai_addr, info.ai_addrlen) == 0 && ::listen(fd.get(), 1024) == 0) {
      return fd;
    }
  }
  failure = errno;
  return {};
}

}  // namespace

int milliseconds_left(Deadline deadline) noexcept {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60000));
}

std::string Address::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Address Address::parse(std::string_view text, const std::string& what) {
  Address address;
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && colon > 0) {
    std::string_view host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    }
    address.host = std::string(host);
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (error == std::errc() && stop == end && address.port > 0 && address.port < 65536) {
      return address;
    }
  }
  throw ConfigError(fmt::format("{}: got '{}', expected host:port", what, text));
}

UniqueFd listen_tcp(const std::string& host, int port, int& bound_port) {
  const AddressList list = resolve({host, port}, true);
  int failure = 0;
  // With no host, an IPv6 socket also takes IPv4; machines without IPv6 fall back.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
      if (info->ai_family != family) continue;
      UniqueFd fd = try_listen(*info, failure);
      if (!fd) continue;
      sockaddr_storage bound{};
      socklen_t length = sizeof bound;
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
      bound_port =
          ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      return fd;
    }
  }
  throw CommError(
      fmt::format("cannot listen on {}: {}", Address{host, port}.text(), ::strerror(failure)),
      "choose another port, or leave it out: a free one is found and published");
}

UniqueFd accept_tcp(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) set_options(fd.get());
  return fd;
}

UniqueFd connect_tcp(const Address& address, Deadline deadline) {
  const AddressList list = resolve(address, false);
  int failure = ETIMEDOUT;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    UniqueFd fd(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    if (::connect(fd.get(), info->ai_addr, info->ai_addrlen) != 0) {
      if (errno != EINPROGRESS) {
        failure = errno;
        continue;
      }
      pollfd waiting{fd.get(), POLLOUT, 0};
      while (::poll(&waiting, 1, milliseconds_left(deadline)) <= 0 &&
             std::chrono::steady_clock::now() < deadline) {
      }
      socklen_t length = sizeof failure;
      failure = ETIMEDOUT;
      if (waiting.revents == 0) continue;
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
      if (failure != 0) continue;
    }
    // Linux may connect a loopback socket to itself when the port is free and ephemeral.
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t own_length = sizeof own;
    socklen_t peer_length = sizeof peer;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &own_length);
    ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length);
    if (own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0) {
      failure = ECONNREFUSED;
      continue;
    }
    set_options(fd.get());
    return fd;
  }
  throw CommError(fmt::format("cannot connect to {}: {}", address.text(), ::strerror(failure)));
}

std::vector<std::string> own_addresses(const std::string& interface) {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {host_name()};
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0) continue;
    if (interface.empty() ? (item->ifa_flags & IFF_LOOPBACK) != 0 : interface != item->ifa_name) {
      continue;
    }
    char text[INET6_ADDRSTRLEN] = {};
    if (item->ifa_addr->sa_family == AF_INET) {
      const auto* in4 = reinterpret_cast<const sockaddr_in*>(item->ifa_addr);
      ::inet_ntop(AF_INET, &in4->sin_addr, text, sizeof text);
    } else if (item->ifa_addr->sa_family == AF_INET6) {
      const auto* in6 = reinterpret_cast<const sockaddr_in6*>(item->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)) continue;  // means nothing on another host
      ::inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof text);
    }
    if (text[0] != '\0') addresses.emplace_back(text);
  }
  ::freeifaddrs(list);
  if (!interface.empty() && addresses.empty()) {
    throw ConfigError(fmt::format("interface: '{}' has no address on {}", interface, host_name()),
                      "see `ip addr` for the names");
  }
  if (interface.empty()) addresses.push_back(host_name());
  return addresses;
}

Ends connection_ends(int fd) {
  const auto text = [fd](auto&& ask) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    char host[NI_MAXHOST] = {};
    if (ask(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, nullptr, 0,
                      NI_NUMERICHOST) != 0)
      return std::string();
    std::string found = host;
    // What a dual-stack listener sees of an IPv4 peer.
    if (found.starts_with("::ffff:")) found.erase(0, 7);
    return found;
  };
  return {text(::getsockname), text(::getpeername)};
}

bool Channel::receive(std::vector<Frame>& frames, std::size_t max_frames) {
  bool open = true;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) in_.append(buffer, static_cast<std::size_t>(n));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) open = false;
    // A short read means the kernel's buffer is empty; a huge one yields to the other peers.
    if (n < static_cast<ssize_t>(sizeof buffer) || in_.size() > max_frame_ + kFrameHeader) break;
  }
  std::size_t at = 0;
  while (in_.size() - at >= kFrameHeader && frames.size() < max_frames) {
    std::uint32_t length = 0;
    std::memcpy(&length, in_.data() + at, 4);
    if (std::memcmp(in_.data() + at + 5, kFrameMark, 3) != 0) {
      throw CommError("a peer does not speak this version of the protocol");
    }
    if (length > max_frame_) {
      throw CommError(
          fmt::format("a peer sent {} bytes at once, the limit is {}", length, max_frame_));
    }
    if (in_.size() - at < kFrameHeader + length) break;
    Frame frame;
    frame.type = static_cast<std::uint8_t>(in_[at + 4]);
    std::memcpy(&frame.id, in_.data() + at + 8, 8);
    frame.body = in_.substr(at + kFrameHeader, length);
    frames.push_back(std::move(frame));
    at += kFrameHeader + length;
  }
  in_.erase(0, at);
  return open;
}

bool Channel::send(const Frame& frame) {
  char header[kFrameHeader] = {};
  const auto length = static_cast<std::uint32_t>(frame.body.size());
  std::memcpy(header, &length, 4);
  header[4] = static_cast<char>(frame.type);
  std::memcpy(header + 5, kFrameMark, 3);
  std::memcpy(header + 8, &frame.id, 8);
  out_.append(header, sizeof header);
  out_.append(frame.body);
  return flush();
}

bool Channel::flush() {
  while (sent_ < out_.size()) {
    const ssize_t n =
        ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) return false;
    sent_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  return true;
}

Frame receive_one(Channel& channel, Deadline deadline, const std::string& peer) {
  std::vector<Frame> frames;
  for (;;) {
    const bool open = channel.receive(frames, 1);
    if (!frames.empty()) return std::move(frames.front());
    if (!open) throw CommError(peer + " closed the connection");
    pollfd waiting{channel.fd(), POLLIN, 0};
    ::poll(&waiting, 1, milliseconds_left(deadline));
    if (waiting.revents == 0 && std::chrono::steady_clock::now() >= deadline) {
      throw CommError(peer + " did not answer in time");
    }
  }
}

void send_one(Channel& channel, const Frame& frame, Deadline deadline, const std::string& peer) {
  bool open = channel.send(frame);
  while (open && channel.wants_write()) {
    pollfd waiting{channel.fd(), POLLOUT, 0};
    ::poll(&waiting, 1, milliseconds_left(deadline));
    if (waiting.revents == 0 && std::chrono::steady_clock::now() >= deadline) {
      throw CommError(peer + " does not read what is sent to it");
    }
    open = channel.flush();
  }
  if (!open) throw CommError(peer + " closed the connection");
}

}  // namespace tutti::launch
