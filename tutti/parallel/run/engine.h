// The driver's loop: one thread that owns the socket, the backend and every worker's state.
// Internal to the room; Client is the public face.
//
// One pass of the loop: take what arrived, see who died, bring up replacements, hand out leases.
// Everything the loop decides about items is in Schedule; everything about processes in Backend.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "tutti/core/file.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/run/run_state.h"
#include "tutti/parallel/wire/secrets.h"

namespace tutti::parallel {

class Engine {
 public:
  Engine(ParallelSettings settings, ClientOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread.
  void begin(std::shared_ptr<RunState> run);
  void abandon();  // the caller has left its run
  void start_workers();
  double item_seconds(const std::string& job_key) const;

  const ParallelSettings& settings() const noexcept { return settings_; }
  const std::filesystem::path& run_folder() const noexcept { return options_.run_folder; }
  const std::string& endpoint() const noexcept { return endpoint_; }
  const std::vector<std::string>& libraries() const noexcept { return settings_.plugins; }

 private:
  using SteadyClock = std::chrono::steady_clock;
  using TimePoint = SteadyClock::time_point;

  enum class Phase { kStarting, kConnected, kBuilding, kReady, kDying };
  struct Worker {
    int id = 0;
    std::string job_id;
    bool sole_of_job = true;
    std::filesystem::path log;
    Phase phase = Phase::kStarting;
    std::uint64_t pid = 0;
    std::string host;
    std::uint32_t job = 0;  // the job it was told about
    bool said_bye = false;
    TimePoint started;
    TimePoint last_heard;
    TimePoint last_lease;
    TimePoint gone_at;   // kDying: when to bury it
    std::string reason;  // kDying
    bool blame = true;   // kDying
    WorkerReport report;
    std::uint64_t busy_ns = 0;
  };

  void open_socket();
  void loop();
  void take_commands();
  void receive_all();
  void handle(const std::string& identity, std::string bytes);
  void on_hello(const std::string& identity, std::uint32_t id, std::uint64_t pid,
                std::string_view host);
  void on_results(Worker& worker, std::string bytes);
  void on_trouble(Worker& worker, std::uint8_t kind, std::uint64_t lease, std::uint64_t index,
                  std::string_view text);
  void on_env_failed(Worker& worker, std::uint32_t exit_code, std::string_view error);
  void watch_strangers();
  void poll_backend(TimePoint now);
  void watch_silence(TimePoint now);
  void bury_the_dead(TimePoint now);
  void bury(Worker& worker);
  void end_worker(Worker& worker, std::string reason, bool blame);
  void bring_up(TimePoint now);
  void hand_out(TimePoint now);
  void ping_all(TimePoint now);
  void drain_if_asked();
  void finish_run(std::exception_ptr error);
  void fail_item(std::uint64_t index, const std::string& text, int worker);
  void start_failed(const std::string& what, const Worker& worker);
  void publish(TimePoint now);
  void shut_down();
  bool send(const Worker& worker, const std::string& message);
  int count_live() const;
  std::string log_tail(const Worker& worker) const;

  // constant after construction
  const ParallelSettings settings_;
  ClientOptions options_;
  const bool local_;
  std::optional<TempFolder> own_folder_;
  std::string own_host_;
  std::string endpoint_;

  // any thread, guarded by mutex_
  mutable std::mutex mutex_;
  std::shared_ptr<RunState> next_run_;
  bool abandon_ = false;
  bool want_workers_ = false;
  bool closing_ = false;
  std::map<std::string, double> item_seconds_;  // by job, seeds the next run's leases
  UniqueFd event_;

  // engine thread only (sockets are made by the constructor and handed over)
  void* context_ = nullptr;
  void* router_ = nullptr;
  void* monitor_ = nullptr;
  std::unique_ptr<Doorman> doorman_;
  std::unique_ptr<Backend> backend_;
  std::map<int, Worker> workers_;
  std::vector<WorkerReport> past_workers_;  // of the current run
  std::shared_ptr<RunState> run_;
  std::uint32_t job_serial_ = 0;
  bool draining_ = false;
  bool keep_workers_ = false;
  int failed_starts_ = 0;  // in a row
  std::string last_failure_;
  TimePoint not_before_{};  // back-off of replacements
  TimePoint run_began_{};
  TimePoint last_poll_{};
  TimePoint last_ping_{};
  TimePoint last_publish_{};
  TimePoint last_recall_{};
  TimePoint last_pass_{};
  std::uint64_t refused_peers_ = 0;  // since the client was made
  std::thread thread_;
};

}  // namespace tutti::parallel
