#include "tutti/launch/control_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

using std::chrono::steady_clock;

steady_clock::duration ticks(Timeout timeout) {
  return std::chrono::duration_cast<steady_clock::duration>(timeout);
}

}  // namespace

ControlClient::ControlClient(Channel channel, std::string hub, const ControlOptions& options)
    : hub_(std::move(hub)),
      options_(options),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      channel_(std::move(channel)) {
  if (!wake_) throw_errno("cannot make an eventfd", errno);
  channel_.set_max_frame(std::size_t{1} << 31);
  thread_ = std::thread(&ControlClient::loop, this);
}

ControlClient::~ControlClient() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void ControlClient::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
}

void ControlClient::throw_failure() const { throw CommError(*failure_); }

void ControlClient::send(const Frame& frame) {
  bool queued = false;
  {
    const std::lock_guard lock(mutex_);
    channel_.send(frame);  // a closed connection is seen, and named, by the reading thread
    queued = channel_.wants_write();
  }
  if (queued) wake();
}

std::vector<Member> ControlClient::wait_ready(int world_size) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_ || failure_; });
  if (failure_) throw_failure();
  std::vector<Member> members;
  Parser parser(*ready_);
  for (int rank = 0; rank < world_size; ++rank) {
    Member member;
    member.rank = rank;
    member.local_rank = parser.get<std::int32_t>();
    member.node_rank = parser.get<std::int32_t>();
    member.pid = parser.get<std::int32_t>();
    member.host = parser.text();
    member.device = parser.text();
    member.found_by = parser.text();
    members.push_back(std::move(member));
  }
  return members;
}

std::uint64_t ControlClient::begin_call(CallKind kind, const std::string& label,
                                        std::string_view blob, Timeout timeout) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_failure();
    id = next_call_++;
  }
  send({kContribute, id, Builder().put(kind).put(timeout.count()).text(label).text(blob).take()});
  return id;
}

std::string ControlClient::end_call(std::uint64_t id) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || results_.contains(id); });
  const auto it = results_.find(id);
  if (it == results_.end()) throw_failure();  // a result that came before the failure still counts
  std::string result = std::move(it->second);
  results_.erase(it);
  return result;
}

void ControlClient::set_phase(const std::string& phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  ++progress_;
}

void ControlClient::request_stop() noexcept {
  try {
    send({kStopWish, 0, {}});
  } catch (const std::exception&) {  // a lost connection is reported where it is read
  }
}

void ControlClient::last_words(const std::string& message) noexcept {
  try {
    send({kLastWords, 0, Builder().text(message).take()});
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(2), [&] { return heard_; });
  } catch (const std::exception&) {  // already dying: there is nobody left to tell
  }
}

void ControlClient::finish() {
  send({kGoodbye, 0, {}});
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return farewell_ || failure_; });
  if (!farewell_) throw_failure();
}

std::optional<std::string> ControlClient::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ControlClient::on_failure(std::function<void(const std::string&)> callback) {
  std::unique_lock lock(mutex_);
  if (!failure_) {
    callback_ = std::move(callback);
    return;
  }
  const std::string message = *failure_;
  lock.unlock();
  callback(message);
}

void ControlClient::fail(const std::string& message) {
  std::function<void(const std::string&)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || farewell_) return;
    failure_ = message;
    callback = std::move(callback_);
    callback_ = nullptr;
  }
  changed_.notify_all();
  if (callback) callback(message);
}

void ControlClient::handle(Frame frame) {
  switch (frame.type) {
    case kHeartbeat:
      return;
    case kStopWish:
      stop_requested_ = true;
      return;
    case kFailure: {
      Parser parser(frame.body);
      parser.get<std::int32_t>();
      return fail(parser.text());
    }
    case kResult: {
      const std::lock_guard lock(mutex_);
      results_[frame.id] = std::move(frame.body);
      break;
    }
    case kReady: {
      const std::lock_guard lock(mutex_);
      ready_ = std::move(frame.body);
      break;
    }
    case kHeard: {
      const std::lock_guard lock(mutex_);
      heard_ = true;
      break;
    }
    case kFarewell: {
      const std::lock_guard lock(mutex_);
      farewell_ = true;
      break;
    }
    default:
      throw CommError("unknown frame from rank 0");
  }
  changed_.notify_all();
}

void ControlClient::loop() {
  auto last_heard = steady_clock::now();
  auto last_round = last_heard;
  auto next_beat = last_heard;
  std::vector<Frame> frames;
  bool open = true;
  bool readable = true;  // frames may have come together with the welcome
  while (open) {
    short events = POLLIN;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      const auto now = steady_clock::now();
      if (now >= next_beat) {
        channel_.send({kHeartbeat, 0, Builder().put(progress_).text(phase_).take()});
        next_beat = now + ticks(options_.heartbeat_interval);
      }
      channel_.flush();
      if (channel_.wants_write()) events |= POLLOUT;
    }
    pollfd fds[2] = {{channel_.fd(), events, 0}, {wake_.get(), POLLIN, 0}};
    ::poll(fds, 2, readable ? 0 : milliseconds_left(next_beat));
    readable = readable || (fds[0].revents & ~POLLOUT) != 0;
    if (fds[1].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto n = ::read(wake_.get(), &count, sizeof count);
    }
    const auto now = steady_clock::now();
    if (now - last_round > std::chrono::seconds(3)) last_heard += now - last_round;  // we slept
    last_round = now;
    try {
      if (readable) {
        readable = false;
        open = channel_.receive(frames);
        last_heard = now;
        for (Frame& frame : frames) handle(std::move(frame));
        frames.clear();
      }
    } catch (const CommError& error) {
      return fail(fmt::format("{}: {}", hub_, error.what()));
    }
    if (now - last_heard > ticks(options_.heartbeat_timeout)) {
      return fail(fmt::format("{} has been silent for {:.0f} s (stopped, swapped out or cut off)",
                              hub_, std::chrono::duration<double>(now - last_heard).count()));
    }
  }
  fail(hub_ + " died (its connection closed)");
}

}  // namespace tutti::launch
