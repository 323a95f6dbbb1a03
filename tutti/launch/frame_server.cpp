#include "tutti/launch/frame_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tutti/core/error.h"
#include "tutti/core/log.h"

namespace tutti::launch {

constexpr std::size_t kMaxStrangers = 256;
constexpr std::size_t kMaxQueued = std::size_t{1} << 30;  // a peer that does not read is dropped

FrameServer::FrameServer(Handler& handler, Options options)
    : handler_(handler),
      options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw_errno("cannot make an eventfd", errno);
  for (const int port : options_.ports) {
    try {
      int bound = 0;
      listeners_.push_back(listen_tcp(options_.host, port, bound));
      ports_.push_back(bound);
    } catch (const CommError& error) {
      if (listeners_.empty()) throw;
      log::warning("{}; the other addresses are used", error.what());
    }
  }
}

void FrameServer::start() { thread_ = std::thread(&FrameServer::loop, this); }

void FrameServer::stop() noexcept {
  stopping_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void FrameServer::send(Connection connection, const Frame& frame) {
  const auto it = peers_.find(connection);
  if (it == peers_.end() || it->second->gone) return;
  Peer& peer = *it->second;
  if (!peer.channel.send(frame) || peer.channel.queued() > kMaxQueued) peer.gone = true;
}

void FrameServer::drop(Connection connection) {
  const auto it = peers_.find(connection);
  if (it != peers_.end()) it->second->gone = true;
}

void FrameServer::accept_all(int listener) {
  for (;;) {
    UniqueFd fd = accept_tcp(listener);
    if (!fd) return;
    auto peer = std::make_unique<Peer>(
        Peer{Channel(std::move(fd), kMaxHello), Gatekeeper(options_.purpose, options_.secrets),
             deadline_in(std::chrono::duration<double>(kHandshakeSeconds))});
    peer->gone = !peer->channel.send(peer->gate.challenge());
    peers_.emplace(next_++, std::move(peer));
    const auto strangers = std::count_if(peers_.begin(), peers_.end(),
                                         [](const auto& p) { return !p.second->greeted; });
    if (strangers > static_cast<std::ptrdiff_t>(kMaxStrangers)) {
      // The oldest goes: a real peer says hello within milliseconds.
      std::find_if(peers_.begin(), peers_.end(), [](const auto& p) {
        return !p.second->greeted && !p.second->gone;
      })->second->gone = true;
    }
  }
}

void FrameServer::read_from(Connection connection, Peer& peer) {
  std::vector<Frame> frames;
  bool proven = false;
  try {
    if (!peer.channel.receive(frames)) peer.gone = true;
    for (Frame& frame : frames) {
      if (peer.greeted) {
        handler_.receive(connection, std::move(frame));
        continue;
      }
      const std::string hello = peer.gate.check(frame);
      proven = true;
      const std::string welcome = handler_.greet(connection, hello);
      peer.channel.set_max_frame(options_.max_frame);
      peer.greeted = true;
      if (!peer.channel.send(peer.gate.welcome(welcome))) peer.gone = true;
    }
  } catch (const CommError& error) {
    // Strangers, stale ranks and port scanners are worth a line for those who look, no more.
    log::debug("{}: dropped a connection: {}", options_.purpose, error.what());
    if (!peer.greeted) peer.channel.send(Gatekeeper::refusal(error.what(), proven));
    peer.gone = true;
  }
}

void FrameServer::sweep() {
  // closed() may mark further peers as gone, hence the loop.
  for (auto it = peers_.begin(); it != peers_.end();) {
    if (!it->second->gone) {
      ++it;
      continue;
    }
    const Connection connection = it->first;
    const bool greeted = it->second->greeted;
    peers_.erase(it);
    if (greeted) handler_.closed(connection);
    it = peers_.begin();
  }
}

void FrameServer::loop() {
  std::vector<pollfd> fds;
  std::vector<Connection> order;
  while (!stopping_) {
    Deadline wake_at = handler_.tick();
    sweep();
    fds.clear();
    order.clear();
    fds.push_back({wake_.get(), POLLIN, 0});
    for (const UniqueFd& listener : listeners_) fds.push_back({listener.get(), POLLIN, 0});
    for (const auto& [connection, peer] : peers_) {
      const short events = peer->channel.wants_write() ? POLLIN | POLLOUT : POLLIN;
      fds.push_back({peer->channel.fd(), events, 0});
      order.push_back(connection);
      if (!peer->greeted) wake_at = std::min(wake_at, peer->hello_by);
    }
    ::poll(fds.data(), fds.size(), milliseconds_left(wake_at));
    const std::size_t first_peer = 1 + listeners_.size();
    for (std::size_t i = 0; i < order.size(); ++i) {
      Peer& peer = *peers_.at(order[i]);
      const short events = fds[first_peer + i].revents;
      if ((events & POLLOUT) != 0 && !peer.channel.flush()) peer.gone = true;
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(order[i], peer);
      if (!peer.greeted && std::chrono::steady_clock::now() >= peer.hello_by) peer.gone = true;
    }
    for (std::size_t i = 1; i < first_peer; ++i) {
      if (fds[i].revents != 0) accept_all(fds[i].fd);
    }
  }
  // What was queued last (a failure, a farewell) should still reach those who read.
  for (auto& [connection, peer] : peers_) peer->channel.flush();
}

}  // namespace tutti::launch
