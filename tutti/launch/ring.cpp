#include "tutti/launch/ring.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <exception>
#include <thread>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/launch/handshake.h"
#include "tutti/launch/rendezvous.h"

namespace tutti::launch {
namespace {

constexpr char kPurpose[] = "ring";

float from_bf16(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return static_cast<std::uint16_t>((bits >> 16) | 0x40);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

template <class T>
void add_plain(void* sum, const void* part, std::size_t n) {
  auto* const a = static_cast<T*>(sum);
  const auto* const b = static_cast<const T*>(part);
  for (std::size_t i = 0; i < n; ++i) a[i] += b[i];
}

void add(DType type, void* sum, const void* part, std::size_t n) {
  switch (type) {
    case DType::kFloat32:
      return add_plain<float>(sum, part, n);
    case DType::kFloat64:
      return add_plain<double>(sum, part, n);
    case DType::kInt64:
      return add_plain<std::uint64_t>(sum, part, n);  // wraps, as integers do
    case DType::kBFloat16: {
      auto* const a = static_cast<std::uint16_t*>(sum);
      const auto* const b = static_cast<const std::uint16_t*>(part);
      for (std::size_t i = 0; i < n; ++i) a[i] = to_bf16(from_bf16(a[i]) + from_bf16(b[i]));
      return;
    }
    case DType::kBytes:
      throw InternalError("bytes cannot be summed");
  }
}

}  // namespace

std::size_t size_of(DType type) noexcept {
  switch (type) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
    case DType::kInt64:
      return 8;
    case DType::kBFloat16:
      return 2;
    case DType::kBytes:
      return 1;
  }
  return 1;
}

class Ring::Impl {
 public:
  Impl(ControlPlane& control, Timeout timeout)
      : control_(control),
        timeout_(timeout),
        rank_(control.rank().rank),
        world_(control.rank().world_size) {
    if (world_ > 1) connect();
  }

  std::size_t world() const { return static_cast<std::size_t>(world_); }

  // Elements of chunk `index`, when n elements are cut into world_size chunks.
  struct Chunk {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  Chunk chunk(std::size_t n, int index) const {
    const auto i = static_cast<std::size_t>(((index % world_) + world_) % world_);
    const std::size_t begin = n * i / world();
    return {begin, n * (i + 1) / world() - begin};
  }

  // After it, rank r holds the whole sum of chunk r + 1 + shift.
  void reduce_phase(DType type, char* data, std::size_t n, int shift) {
    const std::size_t size = size_of(type);
    scratch_.resize((n / world() + 1) * size);
    for (int hop = 0; hop + 1 < world_; ++hop) {
      const Chunk out = chunk(n, rank_ + shift - hop);
      const Chunk in = chunk(n, rank_ + shift - hop - 1);
      transfer(data + out.begin * size, out.count * size, scratch_.data(), in.count * size);
      add(type, data + in.begin * size, scratch_.data(), in.count);
    }
  }

  // Passes chunks round; `shift` says which chunk this rank holds at the start (rank + shift).
  void gather_phase(char* data, std::size_t n, std::size_t size, int shift) {
    for (int hop = 0; hop + 1 < world_; ++hop) {
      const Chunk out = chunk(n, rank_ + shift - hop);
      const Chunk in = chunk(n, rank_ + shift - hop - 1);
      transfer(data + out.begin * size, out.count * size, data + in.begin * size, in.count * size);
    }
  }

  // Along the ring in blocks, so that all links are busy at once.
  void broadcast(char* data, std::size_t num_bytes, int root) {
    constexpr std::size_t kBlock = 256 << 10;
    const bool first = rank_ == root;
    const bool last = (rank_ + 1) % world_ == root;
    const std::size_t num_blocks = (num_bytes + kBlock - 1) / kBlock;
    const auto length = [&](std::size_t i) { return std::min(kBlock, num_bytes - i * kBlock); };
    // Sends block i - 1 while it receives block i.
    for (std::size_t i = 0; i <= num_blocks; ++i) {
      const bool receive = !first && i < num_blocks;
      const bool send = !last && i > 0;
      transfer(send ? data + (i - 1) * kBlock : nullptr, send ? length(i - 1) : 0,
               receive ? data + i * kBlock : nullptr, receive ? length(i) : 0);
    }
  }

  ControlPlane& control_;
  const Timeout timeout_;
  const int rank_;
  const int world_;

 private:
  std::string name(int rank) const {
    return fmt::format("rank {} ({})", rank,
                       control_.members()[static_cast<std::size_t>(rank)].host);
  }
  int next() const { return (rank_ + 1) % world_; }
  int previous() const { return (rank_ + world_ - 1) % world_; }

  void connect() {
    int port = 0;
    const bool one_node = control_.rank().num_nodes == 1;
    const UniqueFd listener = listen_tcp(one_node ? "127.0.0.1" : "", 0, port);
    Publication own{one_node ? std::vector<std::string>() : own_addresses(), port, "-"};
    own.hosts.emplace_back("127.0.0.1");
    const auto all = control_.all_gather(own.to_text(), "ring addresses");
    const Deadline deadline = deadline_in(Timeout(60));
    // Both handshakes of a rank need their other side to act, so they go on at the same time.
    Channel outgoing;
    std::exception_ptr failure;
    std::thread dial([&] {
      try {
        outgoing = dial_next(all[static_cast<std::size_t>(next())], deadline);
      } catch (const CommError&) {
        failure = std::current_exception();
      }
    });
    try {
      from_previous_ = accept_previous(listener.get(), deadline);
    } catch (const CommError&) {
      dial.join();
      throw;
    }
    dial.join();
    if (failure) std::rethrow_exception(failure);
    to_next_ = std::move(outgoing);
    control_.barrier("ring connected");
  }

  std::string hello(int from, int to) const { return fmt::format("{}>{}", from, to); }

  Channel dial_next(const std::string& published, Deadline deadline) {
    const auto publication = Publication::parse(published);
    if (!publication) throw CommError(name(next()) + " published no address");
    std::string trouble;
    while (std::chrono::steady_clock::now() < deadline && !control_.failure()) {
      for (const std::string& host : publication->hosts) {
        try {
          std::string welcome;
          return connect_with_secret({host, publication->port}, kPurpose, control_.secret(),
                                     hello(rank_, next()),
                                     std::min(deadline, deadline_in(Timeout(3))), welcome);
        } catch (const CommError& error) {
          trouble = error.what();
        }
      }
    }
    throw CommError(fmt::format("{} cannot reach {}: {}", name(rank_), name(next()), trouble));
  }

  Channel accept_previous(int listener, Deadline deadline) {
    while (std::chrono::steady_clock::now() < deadline) {
      if (const auto failure = control_.failure()) throw CommError(*failure);
      pollfd waiting{listener, POLLIN, 0};
      ::poll(&waiting, 1, 100);
      UniqueFd fd = accept_tcp(listener);
      if (!fd) continue;
      try {
        Channel channel(std::move(fd), kMaxHello);
        Gatekeeper gate(kPurpose, {control_.secret()});
        const Deadline by = std::min(deadline, deadline_in(Timeout(3)));
        send_one(channel, gate.challenge(), by, "a peer");
        const std::string said = gate.check(receive_one(channel, by, "a peer"));
        if (said != hello(previous(), rank_)) {
          send_one(channel, Gatekeeper::refusal("not your neighbour", true), by, "a peer");
          continue;
        }
        send_one(channel, gate.welcome(""), by, "a peer");
        return channel;
      } catch (const CommError&) {  // a stranger; the neighbour will come
      }
    }
    throw CommError(fmt::format("{} did not connect to {} in time", name(previous()), name(rank_)));
  }

  [[noreturn]] void lost(int rank, const std::string& what) {
    // The control plane knows more (last words, phase) and hears of a death at about the same time.
    const Deadline patience = deadline_in(Timeout(2));
    while (std::chrono::steady_clock::now() < patience) {
      if (const auto failure = control_.failure()) throw CommError(*failure);
      ::poll(nullptr, 0, 5);
    }
    throw CommError(fmt::format("{} {}", name(rank), what));
  }

  // Sends and receives at the same time; either part may be empty.
  void transfer(const char* out, std::size_t num_out, char* in, std::size_t num_in) {
    Deadline deadline = deadline_in(timeout_);
    while (num_out > 0 || num_in > 0) {
      pollfd fds[2] = {{num_in > 0 ? from_previous_.fd() : -1, POLLIN, 0},
                       {num_out > 0 ? to_next_.fd() : -1, POLLOUT, 0}};
      const int ready = ::poll(fds, 2, std::min(200, milliseconds_left(deadline)));
      if (ready <= 0) {
        if (const auto failure = control_.failure()) throw CommError(*failure);
        if (std::chrono::steady_clock::now() >= deadline) {
          lost(num_in > 0 ? previous() : next(),
               fmt::format("moved no byte for {} s", timeout_.count()));
        }
        continue;
      }
      if (fds[0].revents != 0) {
        const ssize_t n = ::recv(from_previous_.fd(), in, num_in, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
          lost(previous(), "closed its ring connection");
        if (n > 0) in += n, num_in -= static_cast<std::size_t>(n);
      }
      if (fds[1].revents != 0) {
        const ssize_t n = ::send(to_next_.fd(), out, num_out, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) lost(next(), "closed its ring connection");
        if (n > 0) out += n, num_out -= static_cast<std::size_t>(n);
      }
      deadline = deadline_in(timeout_);
    }
  }

  Channel to_next_;
  Channel from_previous_;
  std::vector<char> scratch_;
};

Ring::Ring(ControlPlane& control, Timeout timeout)
    : impl_(std::make_unique<Impl>(control, timeout)) {}
Ring::~Ring() = default;

void Ring::all_reduce_sum(DType type, void* data, std::size_t n) {
  if (impl_->world_ == 1) return;
  impl_->reduce_phase(type, static_cast<char*>(data), n, 0);
  impl_->gather_phase(static_cast<char*>(data), n, size_of(type), 1);
}

void Ring::broadcast(void* data, std::size_t num_bytes, int root) {
  if (impl_->world_ > 1) impl_->broadcast(static_cast<char*>(data), num_bytes, root);
}

void Ring::all_gather(const void* mine, void* all, std::size_t num_bytes) {
  char* const place = static_cast<char*>(all) + static_cast<std::size_t>(impl_->rank_) * num_bytes;
  if (place != mine && num_bytes > 0) std::memcpy(place, mine, num_bytes);
  if (impl_->world_ > 1)
    impl_->gather_phase(static_cast<char*>(all), num_bytes * impl_->world(), 1, 0);
}

void Ring::reduce_scatter_sum(DType type, void* all, void* mine, std::size_t n) {
  const std::size_t size = size_of(type);
  char* const data = static_cast<char*>(all);
  if (impl_->world_ == 1) {
    if (n > 0) std::memcpy(mine, data, n * size);
    return;
  }
  impl_->reduce_phase(type, data, n * impl_->world(), -1);
  if (n > 0) std::memcpy(mine, data + static_cast<std::size_t>(impl_->rank_) * n * size, n * size);
}

}  // namespace tutti::launch
