// A rank's connection to the hub: one thread that reads, beats and watches. Internal; see
// control.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/launch/hub.h"

namespace tutti::launch {

class ControlClient {
 public:
  // Takes over a connection that has been welcomed. `hub` names rank 0 in errors.
  ControlClient(Channel channel, std::string hub, const ControlOptions& options);
  ~ControlClient();

  // Blocks until all ranks have joined.
  std::vector<Member> wait_ready(int world_size);
  std::uint64_t begin_call(CallKind kind, const std::string& label, std::string_view blob,
                           Timeout timeout);
  // The blobs of all ranks, as they lie in the frame.
  std::string end_call(std::uint64_t id);
  void set_phase(const std::string& phase);
  void request_stop() noexcept;
  bool stop_requested() const noexcept { return stop_requested_; }
  void last_words(const std::string& message) noexcept;
  void finish();
  std::optional<std::string> failure() const;
  void on_failure(std::function<void(const std::string&)> callback);

 private:
  void loop();
  void handle(Frame frame);
  void fail(const std::string& message);
  void send(const Frame& frame);
  void wake() noexcept;
  [[noreturn]] void throw_failure() const;  // REQUIRES: mutex_ held, failure_ set

  // Constant after construction.
  const std::string hub_;
  const ControlOptions options_;
  UniqueFd wake_;

  std::atomic<bool> stop_requested_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_ (the channel's sending half; receiving belongs to the thread).
  Channel channel_;
  std::map<std::uint64_t, std::string> results_;
  std::uint64_t next_call_ = 1;
  std::string phase_ = "starting";
  std::uint64_t progress_ = 0;
  std::optional<std::string> ready_;
  std::optional<std::string> failure_;
  std::function<void(const std::string&)> callback_;
  bool heard_ = false;
  bool farewell_ = false;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace tutti::launch
