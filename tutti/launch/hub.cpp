#include "tutti/launch/hub.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"

namespace tutti::launch {
namespace {

using std::chrono::steady_clock;

steady_clock::duration poll_ticks(Timeout timeout) {
  return std::chrono::duration_cast<steady_clock::duration>(timeout);
}

double seconds_since(steady_clock::time_point then, steady_clock::time_point now) {
  return std::chrono::duration<double>(now - then).count();
}

// How the call reads in an error: "agree at step 120", "all_gather 'config'".
std::string call_name(CallKind kind, const std::string& label, const std::string& blob) {
  if (kind == CallKind::kAgree && blob.size() == sizeof(StepReport)) {
    return fmt::format("agree at step {}", Parser(blob).get<StepReport>().step);
  }
  return fmt::format("'{}'", label);
}

}  // namespace

Hub::Hub(HubOptions options)
    : options_(std::move(options)),
      ranks_(static_cast<std::size_t>(options_.world_size)),
      started_(steady_clock::now()),
      last_tick_(started_),
      next_beat_(started_),
      next_missing_report_(started_ + poll_ticks(options_.control.name_missing_after)),
      store_({.host = options_.host, .port = 0, .secrets = options_.secrets}),
      server_(*this, {.host = options_.host,
                      .ports = options_.ports,
                      .purpose = options_.purpose,
                      .secrets = options_.secrets}) {
  server_.start();
}

Hub::~Hub() { server_.stop(); }

std::string Hub::describe(int rank) const {
  const Rank& r = ranks_[rank];
  if (!r.joined) return fmt::format("rank {}", rank);
  return fmt::format("rank {} ({}, pid {})", rank, r.member.host, r.member.pid);
}

std::string Hub::greet(Connection connection, const std::string& hello) {
  Parser parser(hello);
  Member member;
  member.rank = parser.get<std::int32_t>();
  const int world_size = parser.get<std::int32_t>();
  member.local_rank = parser.get<std::int32_t>();
  member.node_rank = parser.get<std::int32_t>();
  member.pid = parser.get<std::int32_t>();
  member.host = parser.text();
  member.device = parser.text();
  member.found_by = parser.text();
  std::vector<std::pair<std::string, std::string>> must_agree;
  for (std::uint32_t n = parser.get<std::uint32_t>(); n > 0; --n) {
    std::string name = parser.text();
    must_agree.emplace_back(std::move(name), parser.text());
  }
  if (world_size != options_.world_size) {
    throw CommError(fmt::format("rank {} on {} believes in {} ranks, rank 0 in {}", member.rank,
                                member.host, world_size, options_.world_size));
  }
  if (member.rank < 0 || member.rank >= world_size) {
    throw CommError(fmt::format("there is no rank {} among {}", member.rank, world_size));
  }
  Rank& rank = ranks_[member.rank];
  if (rank.joined) {
    throw CommError(
        fmt::format("{} has already joined; a second process ({}, pid {}) says it is it",
                    describe(member.rank), member.host, member.pid));
  }
  rank.member = std::move(member);
  rank.must_agree = std::move(must_agree);
  rank.connection = connection;
  rank.joined = true;
  rank.last_seen = rank.last_progress = steady_clock::now();
  rank_of_[connection] = rank.member.rank;
  return Builder().put(static_cast<std::int32_t>(store_.port())).take();
}

void Hub::send_all(const Frame& frame) {
  for (const Rank& rank : ranks_) {
    if (rank.connection != 0) server_.send(rank.connection, frame);
  }
}

void Hub::check_everyone_joined() {
  if (ready_ || failure_) return;
  if (!std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.joined; })) return;
  ready_ = true;
  for (const Rank& rank : ranks_) {
    if (rank.must_agree.size() != ranks_[0].must_agree.size()) {
      return fail(rank.member.rank,
                  describe(rank.member.rank) + " runs another version of this program");
    }
    for (std::size_t i = 0; i < rank.must_agree.size(); ++i) {
      const auto& [name, value] = rank.must_agree[i];
      const auto& [name0, value0] = ranks_[0].must_agree[i];
      if (name == name0 && value == value0) continue;
      return fail(rank.member.rank, fmt::format("{} differs from rank 0 ({}) in {}: {} against {}",
                                                describe(rank.member.rank), ranks_[0].member.host,
                                                name, value, value0));
    }
  }
  Builder table;
  for (const Rank& rank : ranks_) {
    const Member& m = rank.member;
    table.put(static_cast<std::int32_t>(m.local_rank))
        .put(static_cast<std::int32_t>(m.node_rank))
        .put(static_cast<std::int32_t>(m.pid))
        .text(m.host)
        .text(m.device)
        .text(m.found_by);
  }
  send_all({kReady, 0, table.take()});
}

void Hub::receive(Connection connection, Frame frame) {
  const auto it = rank_of_.find(connection);
  if (it == rank_of_.end()) return;
  Rank& rank = ranks_[it->second];
  rank.last_seen = steady_clock::now();
  switch (frame.type) {
    case kContribute:
      return on_contribute(it->second, frame);
    case kHeartbeat: {
      Parser parser(frame.body);
      const auto progress = parser.get<std::uint64_t>();
      if (progress == rank.progress) return;  // an older phase than the last call we have seen
      rank.progress = progress;
      rank.last_progress = rank.last_seen;
      rank.phase = parser.text();
      return;
    }
    case kLastWords:
      fail(it->second, fmt::format("{} failed while {}: {}", describe(it->second), rank.phase,
                                   Parser(frame.body).text()));
      return server_.send(connection, {kHeard, frame.id, {}});
    case kStopWish:
      return send_all({kStopWish, 0, {}});
    case kGoodbye:
      rank.left = true;
      if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.left; })) {
        send_all({kFarewell, 0, {}});
      }
      return;
    default:
      throw CommError("unknown frame from a rank");
  }
}

void Hub::on_contribute(int rank, const Frame& frame) {
  if (failure_) return server_.send(ranks_[rank].connection, *failure_);
  Parser parser(frame.body);
  const auto kind = parser.get<CallKind>();
  const Timeout timeout(parser.get<double>());
  const std::string label = parser.text();
  std::string blob = parser.text();
  const TimePoint now = steady_clock::now();
  ranks_[rank].last_progress = now;
  Call& call = calls_[frame.id];
  if (call.num_blobs == 0) {
    call.kind = kind;
    call.label = label;
    call.first_rank = rank;
    call.first_time = now;
    call.timeout = timeout;
    call.blobs.resize(ranks_.size());
  }
  if (kind != call.kind || label != call.label) {
    return fail(
        rank, fmt::format("the ranks have come apart: call {} is {} on {} but {} on {}", frame.id,
                          call_name(call.kind, call.label, *call.blobs[call.first_rank]),
                          describe(call.first_rank), call_name(kind, label, blob), describe(rank)));
  }
  if (kind == CallKind::kAgree) ranks_[rank].phase = call_name(kind, label, blob);
  if (!call.blobs[rank]) ++call.num_blobs;
  call.blobs[rank] = std::move(blob);
  if (call.num_blobs < options_.world_size) return;
  Builder result;
  for (const auto& part : call.blobs) result.text(*part);
  send_all({kResult, frame.id, result.take()});
  calls_.erase(frame.id);
}

void Hub::closed(Connection connection) {
  const auto it = rank_of_.find(connection);
  if (it == rank_of_.end()) return;
  const int rank = it->second;
  rank_of_.erase(it);
  ranks_[rank].connection = 0;
  if (!ranks_[rank].left) {
    fail(rank, fmt::format("{} died (its connection closed) while {}", describe(rank),
                           ranks_[rank].phase));
  }
}

void Hub::fail(int rank, const std::string& message) {
  if (failure_) return;  // the first failure is the cause; what follows are its effects
  failure_ =
      Frame{kFailure, 0, Builder().put(static_cast<std::int32_t>(rank)).text(message).take()};
  send_all(*failure_);
}

std::string Hub::missing_text(const Call& call) const {
  std::vector<std::string> missing;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (call.blobs[r]) continue;
    missing.push_back(fmt::format("{}, last doing: {}{}", describe(static_cast<int>(r)),
                                  ranks_[r].phase, ranks_[r].left ? " (has finished)" : ""));
  }
  return join(missing, "; ");
}

void Hub::check_times(TimePoint now) {
  const ControlOptions& control = options_.control;
  if (!ready_) {
    std::vector<std::string> missing;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!ranks_[r].joined) missing.push_back(std::to_string(r));
    }
    if (now >= started_ + poll_ticks(control.join_timeout)) {
      const std::string who = join(missing, ", ");
      return fail(std::stoi(missing.front()),
                  fmt::format("{} of {} ranks joined within {} s; missing: {}",
                              ranks_.size() - missing.size(), ranks_.size(),
                              control.join_timeout.count(), who));
    }
    if (now >= next_missing_report_) {
      log::warning("waiting for {} of {} ranks since {:.0f} s; missing: {}", missing.size(),
                   ranks_.size(), seconds_since(started_, now), join(missing, ", "));
      next_missing_report_ = now + poll_ticks(control.name_missing_after);
    }
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    if (rank.connection == 0 || rank.left) continue;
    if (now - rank.last_seen > poll_ticks(control.heartbeat_timeout)) {
      return fail(static_cast<int>(r),
                  fmt::format("{} has been silent for {:.0f} s (stopped, swapped out or cut off); "
                              "last doing: {}",
                              describe(static_cast<int>(r)), seconds_since(rank.last_seen, now),
                              rank.phase));
    }
  }
  for (const auto& [id, call] : calls_) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (call.blobs[r]) continue;
      const Rank& rank = ranks_[r];
      const TimePoint since = std::max(call.first_time, rank.last_progress);
      if (!rank.left && now - since <= poll_ticks(call.timeout)) continue;
      return fail(static_cast<int>(r),
                  fmt::format("{} waits since {:.1f} s in {} for: {}", describe(call.first_rank),
                              seconds_since(call.first_time, now),
                              call_name(call.kind, call.label, *call.blobs[call.first_rank]),
                              missing_text(call)));
    }
  }
}

Deadline Hub::tick() {
  const TimePoint now = steady_clock::now();
  check_everyone_joined();
  // Stopped and continued as a whole (job suspension, a laptop's lid): the others' silence during
  // that time is ours.
  const auto stall = now - last_tick_;
  if (stall > std::chrono::seconds(3)) {
    for (Rank& rank : ranks_) rank.last_seen += stall, rank.last_progress += stall;
    for (auto& [id, call] : calls_) call.first_time += stall;
  }
  last_tick_ = now;
  if (!failure_) check_times(now);
  if (now >= next_beat_) {
    send_all({kHeartbeat, 0, {}});
    next_beat_ = now + poll_ticks(options_.control.heartbeat_interval);
  }
  return std::min(next_beat_, now + steady_clock::duration(
                                        std::chrono::milliseconds(calls_.empty() ? 500 : 100)));
}

}  // namespace tutti::launch
