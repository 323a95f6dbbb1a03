#include "tutti/launch/store.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <list>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/launch/frame_server.h"

namespace tutti::launch {
namespace {

enum Request : std::uint8_t {
  kSet = 16,
  kGet,
  kWait,
  kAdd,
  kCompareSet,
  kRemove,
  kList,
  kBarrier,
  kOk = 32,
  kMissing,
  kTimeout,
  kError,
};

constexpr char kStorePurpose[] = "store";
constexpr std::size_t kMaxValue = 64 << 20;
// How much longer than the server's own deadline a client waits for its answer.
constexpr Timeout kSlack{5};

using TimePoint = std::chrono::steady_clock::time_point;

Deadline from_seconds(double seconds) {
  return deadline_in(Timeout(std::clamp(seconds, 0.0, 1e7)));
}

}  // namespace

class StoreServer::Impl final : public FrameServer::Handler {
 public:
  using Connection = FrameServer::Connection;
  explicit Impl(const Options& options)
      : server_(*this, {.host = options.host,
                        .ports = {options.port},
                        .purpose = kStorePurpose,
                        .secrets = options.secrets,
                        .max_frame = kMaxValue}) {
    if (options.secrets.empty()) throw InternalError("a store needs a secret");
    server_.start();
  }
  ~Impl() override { server_.stop(); }
  int port() const noexcept { return server_.port(); }

  std::string greet(Connection, const std::string&) override { return {}; }

  void receive(Connection from, Frame frame) override {
    Parser parser(frame.body);
    switch (frame.type) {
      case kSet:
        return on_set(from, frame.id, parser);
      case kGet:
        return on_get(from, frame.id, parser.text());
      case kWait:
        return on_wait(from, frame.id, parser);
      case kAdd:
        return on_add(from, frame.id, parser);
      case kCompareSet:
        return on_compare_set(from, frame.id, parser);
      case kRemove:
        return reply(from, frame.id, entries_.erase(parser.text()) > 0 ? kOk : kMissing);
      case kList:
        return on_list(from, frame.id, parser.text());
      case kBarrier:
        return on_barrier(from, frame.id, parser);
      default:
        throw CommError("unknown request");
    }
  }

  void closed(Connection connection) override {
    waiters_.remove_if([&](const Waiter& w) { return w.from == connection; });
    for (auto& [name, barrier] : barriers_) {
      std::erase_if(barrier.members, [&](const auto& m) { return m.second.from == connection; });
    }
    std::erase_if(barriers_, [](const auto& b) { return b.second.members.empty(); });
    std::erase_if(entries_,
                  [&](const auto& e) { return e.second.expires && e.second.set_by == connection; });
  }

  Deadline tick() override {
    const TimePoint now = std::chrono::steady_clock::now();
    Deadline next = now + std::chrono::seconds(60);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.expires && *it->second.expires <= now) {
        it = entries_.erase(it);
        continue;
      }
      if (it->second.expires) next = std::min(next, *it->second.expires);
      ++it;
    }
    for (auto it = waiters_.begin(); it != waiters_.end();) {
      if (it->deadline <= now) {
        reply(it->from, it->id, kTimeout);
        it = waiters_.erase(it);
        continue;
      }
      next = std::min(next, it->deadline);
      ++it;
    }
    for (auto& [name, barrier] : barriers_) next = std::min(next, expire(barrier, now));
    std::erase_if(barriers_, [](const auto& b) { return b.second.members.empty(); });
    return next;
  }

 private:
  struct Entry {
    std::string value;
    std::optional<TimePoint> expires;  // a lease: its end,
    Connection set_by = 0;             // and whose it is
  };
  struct Waiter {
    Connection from = 0;
    std::uint64_t id = 0;
    std::string key;
    Deadline deadline;
  };
  struct Barrier {
    int n = 0;
    std::map<int, Waiter> members;
  };

  void reply(Connection to, std::uint64_t id, Request type, std::string body = {}) {
    server_.send(to, {type, id, std::move(body)});
  }

  void store(const std::string& key, std::string value, std::optional<TimePoint> expires = {},
             Connection set_by = 0) {
    for (auto it = waiters_.begin(); it != waiters_.end();) {
      if (it->key == key) {
        reply(it->from, it->id, kOk, value);
        it = waiters_.erase(it);
      } else {
        ++it;
      }
    }
    entries_[key] = {std::move(value), expires, set_by};
  }

  void on_set(Connection from, std::uint64_t id, Parser& parser) {
    const std::string key = parser.text();
    std::string value = parser.text();
    const double lease = parser.get<double>();
    store(key, std::move(value), lease > 0 ? std::optional(from_seconds(lease)) : std::nullopt,
          from);
    reply(from, id, kOk);
  }

  void on_get(Connection from, std::uint64_t id, const std::string& key) {
    const auto it = entries_.find(key);
    if (it == entries_.end()) return reply(from, id, kMissing);
    reply(from, id, kOk, it->second.value);
  }

  void on_wait(Connection from, std::uint64_t id, Parser& parser) {
    const std::string key = parser.text();
    const double seconds = parser.get<double>();
    if (entries_.contains(key)) return on_get(from, id, key);
    waiters_.push_back({from, id, key, from_seconds(seconds)});
  }

  void on_add(Connection from, std::uint64_t id, Parser& parser) {
    const std::string key = parser.text();
    const auto amount = parser.get<std::int64_t>();
    std::int64_t value = 0;
    const auto it = entries_.find(key);
    if (it != entries_.end()) {
      if (it->second.value.size() != sizeof value) {
        return reply(from, id, kError, fmt::format("key '{}' does not hold a number", key));
      }
      std::memcpy(&value, it->second.value.data(), sizeof value);
    }
    // Unsigned: a peer must not be able to make us overflow.
    value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) +
                                      static_cast<std::uint64_t>(amount));
    store(key, Builder().put(value).take());
    reply(from, id, kOk, Builder().put(value).take());
  }

  void on_compare_set(Connection from, std::uint64_t id, Parser& parser) {
    const std::string key = parser.text();
    const std::string expected = parser.text();
    const std::string desired = parser.text();
    const auto it = entries_.find(key);
    const std::string held = it == entries_.end() ? "" : it->second.value;
    if (held != expected) return reply(from, id, kOk, held);
    store(key, desired);
    reply(from, id, kOk, desired);
  }

  void on_list(Connection from, std::uint64_t id, const std::string& prefix) {
    Builder body;
    for (auto it = entries_.lower_bound(prefix); it != entries_.end(); ++it) {
      if (it->first.compare(0, prefix.size(), prefix) != 0) break;
      body.put(std::uint8_t{1}).text(it->first).text(it->second.value);
    }
    reply(from, id, kOk, body.put(std::uint8_t{0}).take());
  }

  void on_barrier(Connection from, std::uint64_t id, Parser& parser) {
    const std::string name = parser.text();
    const int member = parser.get<std::int32_t>();
    const int n = parser.get<std::int32_t>();
    const double seconds = parser.get<double>();
    Barrier& barrier = barriers_[name];
    if (barrier.n == 0) barrier.n = n;
    if (n != barrier.n || member < 0 || member >= n) {
      return reply(from, id, kError,
                   fmt::format("barrier '{}': member {} of {} came, but it was opened for {}", name,
                               member, n, barrier.n));
    }
    if (barrier.members.contains(member)) {
      return reply(from, id, kError,
                   fmt::format("barrier '{}': member {} came twice", name, member));
    }
    barrier.members[member] = {from, id, {}, from_seconds(seconds)};
    if (static_cast<int>(barrier.members.size()) < n) return;
    for (const auto& [m, waiter] : barrier.members) reply(waiter.from, waiter.id, kOk);
    barriers_.erase(name);
  }

  // Answers those whose time is over with the list of the missing; returns the next deadline.
  Deadline expire(Barrier& barrier, TimePoint now) {
    Deadline next = now + std::chrono::seconds(60);
    std::vector<std::string> missing;
    for (int m = 0; m < barrier.n; ++m) {
      if (!barrier.members.contains(m)) missing.push_back(std::to_string(m));
    }
    std::erase_if(barrier.members, [&](const auto& item) {
      const Waiter& waiter = item.second;
      if (waiter.deadline > now) {
        next = std::min(next, waiter.deadline);
        return false;
      }
      reply(waiter.from, waiter.id, kTimeout, join(missing, ", "));
      return true;
    });
    return next;
  }

  // Touched only by the server's thread.
  std::map<std::string, Entry> entries_;
  std::list<Waiter> waiters_;
  std::map<std::string, Barrier> barriers_;
  FrameServer server_;  // last: its thread uses all of the above
};

StoreServer::StoreServer(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
StoreServer::~StoreServer() = default;
int StoreServer::port() const noexcept { return impl_->port(); }

Store::Store(Address address, std::string secret, Timeout timeout)
    : address_(std::move(address)), secret_(std::move(secret)) {
  const Deadline deadline = deadline_in(timeout);
  for (;;) {
    try {
      std::string welcome;
      // One attempt gets two seconds: a host that swallows packets must not eat the whole time.
      channel_ = connect_with_secret(address_, kStorePurpose, secret_, "",
                                     std::min(deadline, deadline_in(Timeout(2))), welcome);
      channel_.set_max_frame(2 * kMaxValue);
      return;
    } catch (const RefusedError&) {
      throw;
    } catch (const CommError& error) {
      if (std::chrono::steady_clock::now() >= deadline) {
        throw CommError(fmt::format("no store answers: {}", error.what()));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Frame Store::call(std::uint8_t type, const std::string& body, Timeout timeout) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_id_++;
  const Deadline deadline = deadline_in(timeout + kSlack);
  const std::string peer = "the store at " + address_.text();
  send_one(channel_, {type, id, body}, deadline, peer);
  std::vector<Frame> frames;
  for (;;) {
    const bool open = channel_.receive(frames);
    for (Frame& frame : frames) {
      if (frame.id != id) continue;  // the late answer to a request that was given up
      if (frame.type == kError) throw CommError(peer + ": " + frame.body);
      return std::move(frame);
    }
    frames.clear();
    if (!open) throw CommError(peer + " has gone (its process ended or the network failed)");
    pollfd waiting{channel_.fd(), POLLIN, 0};
    ::poll(&waiting, 1, milliseconds_left(deadline));
    if (waiting.revents == 0 && std::chrono::steady_clock::now() >= deadline) {
      throw CommError(peer + " did not answer in time");
    }
  }
}

void Store::set(const std::string& key, const std::string& value, Timeout lease) {
  call(kSet, Builder().text(key).text(value).put(lease.count()).take(), Timeout(30));
}

std::optional<std::string> Store::get(const std::string& key) {
  Frame answer = call(kGet, Builder().text(key).take(), Timeout(30));
  if (answer.type == kMissing) return std::nullopt;
  return std::move(answer.body);
}

std::string Store::wait(const std::string& key, Timeout timeout) {
  Frame answer = call(kWait, Builder().text(key).put(timeout.count()).take(), timeout);
  if (answer.type == kTimeout) {
    throw CommError(fmt::format("nobody set '{}' in the store at {} within {} s", key,
                                address_.text(), timeout.count()));
  }
  return std::move(answer.body);
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) {
  const Frame answer = call(kAdd, Builder().text(key).put(amount).take(), Timeout(30));
  return Parser(answer.body).get<std::int64_t>();
}

std::string Store::compare_set(const std::string& key, const std::string& expected,
                               const std::string& desired) {
  return call(kCompareSet, Builder().text(key).text(expected).text(desired).take(), Timeout(30))
      .body;
}

bool Store::remove(const std::string& key) {
  return call(kRemove, Builder().text(key).take(), Timeout(30)).type == kOk;
}

std::map<std::string, std::string> Store::list(const std::string& prefix) {
  const Frame answer = call(kList, Builder().text(prefix).take(), Timeout(30));
  std::map<std::string, std::string> found;
  Parser parser(answer.body);
  while (parser.get<std::uint8_t>() != 0) {
    std::string key = parser.text();
    found[key] = parser.text();
  }
  return found;
}

void Store::barrier(const std::string& name, int member, int n, Timeout timeout) {
  const Frame answer = call(kBarrier,
                            Builder()
                                .text(name)
                                .put(static_cast<std::int32_t>(member))
                                .put(static_cast<std::int32_t>(n))
                                .put(timeout.count())
                                .take(),
                            timeout);
  if (answer.type == kTimeout) {
    throw CommError(fmt::format("barrier '{}' of {}: still missing after {} s: {}", name, n,
                                timeout.count(), answer.body));
  }
}

}  // namespace tutti::launch
