// The CPU side's conversation between ranks: small agreements, heartbeats with a phase, and
// failures that carry a name. Never touches a GPU.
//
//   auto control = ControlPlane::join(rank, {.run_folder = "exp/run"});
//   control->set_phase("step 120");
//   std::vector<StepReport> all = control->agree({.step = 120, .weight = 32, .flags = kHasData});
//   ...
//   control->finish();                       // everyone is done; else the others call it a death
//
// Rank 0 runs a hub; everybody, rank 0 too, holds one connection to it (a star: one round trip, and
// one place that knows who is late). All ranks must make the same calls in the same order; the hub
// compares and names the one that differs.
//
// Failure: when a rank dies, falls silent, or says its last words, every rank's present and next
// call throws the same CommError: which rank, its host and pid, what it was last doing, its own
// message. A rank that is late but alive is not a failure: the clock of a timeout starts again
// whenever the late rank's phase moves, so a long validation with set_phase("validating 312/900")
// is waited for.
//
// Thread-safety: set_phase, last_words, failure and on_failure from any thread; the collective
// calls from one thread at a time. World size 1 needs no network and never fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/launch/rank.h"
#include "tutti/launch/store.h"

namespace tutti::launch {

// Bits of StepReport::flags.
enum StepFlag : std::uint32_t {
  kHasData = 1,         // this rank has a batch for the step
  kStop = 2,            // a signal or a limit asks to stop after this step
  kOutOfMemory = 4,     // this rank could not do its batch
  kSaveCheckpoint = 8,  // somebody asked for a checkpoint
  kNotFinite = 16,      // this rank's loss is NaN or infinite
};

// What every rank tells every other once per step. Fixed size, so that agreeing stays cheap.
struct StepReport {
  std::int64_t step = 0;
  double weight = 0;            // of this rank's loss: utterances, frames or tokens
  std::uint64_t plan_hash = 0;  // all ranks must have the same
  std::uint32_t flags = 0;
  std::uint32_t reserved = 0;
  double values[4] = {0, 0, 0, 0};  // the caller's own
};

struct ControlOptions {
  std::filesystem::path run_folder;  // shared by all ranks; may be empty where not needed
  std::string interface;             // network interface to publish; empty: all
  std::string device;                // for the table: "cpu", "cuda:0"
  Timeout join_timeout{600};
  Timeout name_missing_after{30};  // then a warning names who has not come
  Timeout timeout{1800};           // of the collective calls
  Timeout heartbeat_interval{1};
  Timeout heartbeat_timeout{15};  // silence after which a rank counts as lost
  // Names and values that must be equal on all ranks (hash of the config, build, library versions):
  // a difference is an error at the start that names the odd rank.
  std::vector<std::pair<std::string, std::string>> must_agree;
};

struct Member {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  int pid = 0;
  std::string host;
  std::string device;
  std::string found_by;
};

class ControlPlane {
 public:
  // Returns when all ranks have joined. Throws CommError naming the missing ranks, ConfigError when
  // there is no way to meet (no run folder, no MASTER_ADDR).
  static std::unique_ptr<ControlPlane> join(const RankContext& rank, const ControlOptions& options);
  // Without finish() before it, the other ranks see this rank die.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  const RankContext& rank() const noexcept;
  const std::vector<Member>& members() const noexcept;  // by rank
  std::string startup_table() const;                    // rank, host, local rank, device, found by

  // Everyone's blob, by rank. `label` must be equal on all ranks; it names the call in errors.
  std::vector<std::string> all_gather(const std::string& blob,
                                      const std::string& label = "all_gather");
  std::vector<std::string> all_gather(const std::string& blob, const std::string& label,
                                      Timeout timeout);
  std::string broadcast(const std::string& blob, int root, const std::string& label = "broadcast");
  void barrier(const std::string& label = "barrier");

  // One round trip. Throws CommError when step or plan_hash differ between ranks, naming them.
  std::vector<StepReport> agree(const StepReport& report);
  // The same in two halves, so that the step's work hides the round trip.
  void agree_begin(const StepReport& report);
  std::vector<StepReport> agree_end();

  // What this rank is doing, for the errors of others. Cheap; sent with the next heartbeat. Calling
  // it is also what counts as progress.
  void set_phase(const std::string& phase);
  // This rank was asked to stop: everyone's stop_requested() is true from soon on, so that ranks in
  // the middle of something long need not be waited for. When to stop is for the next agreement.
  void request_stop() noexcept;
  bool stop_requested() const noexcept;
  // Tells everyone why this rank is about to die; returns when the others have it or after 2 s.
  void last_words(const std::string& message) noexcept;
  // Waits until all ranks have finished, then leaves. Throws CommError when another rank fails.
  void finish();

  // The failure that ended the conversation, if any. Cheap enough for every loop.
  std::optional<std::string> failure() const;
  // Called once, from the control thread, when a failure becomes known (to abort what blocks on the
  // GPU), at once if there is one already. Must not call back into this object except failure().
  void on_failure(std::function<void(const std::string&)> callback);

  // A store all ranks can reach, served by rank 0, for libraries that bring their own transport. A
  // new connection for every call.
  std::unique_ptr<Store> open_store() const;
  // The address under which this rank reaches rank 0's machine, and the run's secret.
  const std::string& hub_host() const noexcept;
  // The address of this machine that the other ranks reach, for libraries that listen themselves:
  // of the interface asked for, else of the way to rank 0 (for rank 0's machine: the address at
  // which the others found it). A host name may mean something else elsewhere, or nothing.
  const std::string& own_address() const noexcept;
  const std::string& secret() const noexcept;

 private:
  class Impl;
  explicit ControlPlane(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::launch
