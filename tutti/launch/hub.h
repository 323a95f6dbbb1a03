// Rank 0's half of the control plane: the centre of the star. Internal to the room; see control.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/control.h"
#include "tutti/launch/frame_server.h"

namespace tutti::launch {

// The frames between a rank and the hub.
enum ControlFrame : std::uint8_t {
  kContribute = 48,  // id: number of the call. body: kind, timeout, label, blob
  kResult,           // id: number of the call. body: a blob per rank
  kHeartbeat,        // from a rank: phase, progress. From the hub: empty
  kLastWords,        // body: message. Answered by kHeard
  kHeard,
  kGoodbye,   // the rank has finished
  kFarewell,  // all have
  kReady,     // all have joined. body: the members
  kFailure,   // body: rank, message
  kStopWish,  // a rank was asked to stop; from the hub: to everyone
};

enum class CallKind : std::uint8_t { kGather = 1, kAgree = 2 };

struct HubOptions {
  int world_size = 1;
  std::string host;  // to bind; "" = every interface
  std::vector<int> ports = {0};
  std::string purpose;
  std::vector<std::string> secrets;
  ControlOptions control;
};

// Lives on a thread of its own until destroyed.
class Hub final : private FrameServer::Handler {
 public:
  explicit Hub(HubOptions options);
  ~Hub() override;
  int port() const noexcept { return server_.port(); }
  int store_port() const noexcept { return store_.port(); }

 private:
  using Connection = FrameServer::Connection;
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Rank {
    Member member;
    std::vector<std::pair<std::string, std::string>> must_agree;
    Connection connection = 0;  // 0: not (or no longer) connected
    bool joined = false;
    bool left = false;
    TimePoint last_seen;      // any frame
    TimePoint last_progress;  // the phase moved, or a call was made
    std::string phase = "starting";
    std::uint64_t progress = 0;
  };
  struct Call {
    CallKind kind = CallKind::kGather;
    std::string label;
    int first_rank = 0;
    TimePoint first_time;
    Timeout timeout{0};
    std::vector<std::optional<std::string>> blobs;
    int num_blobs = 0;
  };

  std::string greet(Connection connection, const std::string& hello) override;
  void receive(Connection connection, Frame frame) override;
  void closed(Connection connection) override;
  Deadline tick() override;

  void on_contribute(int rank, const Frame& frame);
  void check_everyone_joined();
  void check_times(TimePoint now);
  void fail(int rank, const std::string& message);
  void send_all(const Frame& frame);
  std::string describe(int rank) const;  // "rank 1 (node2, pid 77)"
  std::string missing_text(const Call& call) const;

  HubOptions options_;  // constant after construction
  // Touched only by the server's thread.
  std::vector<Rank> ranks_;
  std::map<Connection, int> rank_of_;
  std::map<std::uint64_t, Call> calls_;
  bool ready_ = false;
  std::optional<Frame> failure_;
  TimePoint started_;
  TimePoint last_tick_;
  TimePoint next_beat_;
  TimePoint next_missing_report_;

  StoreServer store_;
  FrameServer server_;  // last: its thread uses all of the above
};

}  // namespace tutti::launch
