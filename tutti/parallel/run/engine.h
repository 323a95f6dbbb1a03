// The driver's loop: one thread that hears the workers and decides. It never runs a command, reads
// a disk or waits for a lock: that is what the side threads of the pool are for.
//
// One pass: take what arrived, see who died, bring up replacements, hand out leases. Pool decides
// about workers, Dispatcher about items. Internal to the room; Client is the public face.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tutti/core/file.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/run/dispatcher.h"
#include "tutti/parallel/run/driver_socket.h"
#include "tutti/parallel/run/mailbox.h"
#include "tutti/parallel/run/pool.h"
#include "tutti/parallel/run/run_state.h"

namespace tutti::parallel {

class Engine final : public PoolListener {
 public:
  // `thread_worker`: what a worker that is a thread of this process does.
  Engine(ParallelSettings settings, ClientOptions options, ThreadWorker thread_worker);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread.
  void begin(std::shared_ptr<RunState> run);
  void abandon();  // the caller has left its run
  void start_workers();
  double item_seconds(const std::string& key) const { return dispatcher_.item_seconds(key); }

  const ParallelSettings& settings() const noexcept { return settings_; }
  const std::filesystem::path& run_folder() const noexcept { return options_.run_folder; }
  const std::string& endpoint() const noexcept { return socket_->endpoint(); }

 private:
  void loop();
  void pass(SteadyTime now);
  void take_commands();
  void receive_all();
  void handle(int id, std::string bytes);  // of worker `id`
  void complain_of_malformed(int id, std::size_t num_bytes);
  int num_wanted() const;

  void on_lost(const PoolWorker& worker, bool blame) override;
  void on_leases_void(const PoolWorker& worker) override;
  void on_hopeless(std::exception_ptr error) override;

  // constant after construction
  const ParallelSettings settings_;
  ClientOptions options_;
  const bool local_;
  std::optional<TempFolder> own_folder_;

  // any thread, guarded by mutex_
  std::mutex mutex_;
  std::shared_ptr<RunState> next_run_;
  bool abandon_ = false;
  bool want_workers_ = false;
  bool closing_ = false;

  // the loop's thread (made by the constructor and handed over)
  Mailbox mailbox_;  // wake() by any thread
  std::unique_ptr<DriverSocket> socket_;
  std::unique_ptr<Pool> pool_;
  Dispatcher dispatcher_;
  bool keep_workers_ = false;
  std::uint64_t num_malformed_ = 0;
  SteadyTime next_complaint_{};
  std::uint64_t refused_peers_ = 0;  // since the client was made
  std::thread thread_;
};

}  // namespace tutti::parallel
