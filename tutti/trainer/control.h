// The CPU side channel between ranks, and the agreement the loop makes on it at every step.
//
// Gradients travel through Collectives (Gloo, NCCL); decisions travel here. Once per optimizer step
// every rank says what it has and wants, and all ranks compute the same verdict from all votes. So
// uneven data, preemption, out-of-memory on one rank and diverging plans are named events, never
// hangs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tutti::trainer {

// Used by the loop thread only; check_peers, still_waiting and fail by any. Every call that waits
// throws CommError naming the missing rank and what it was last doing.
class Control {
 public:
  virtual ~Control() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Everyone's blob, by rank. All ranks must call it; `what` is compared, so that two ranks at
  // different places are an error and not a mix-up.
  virtual std::vector<std::string> all_gather(const std::string& what, const std::string& blob) = 0;
  // What this rank is doing ("validating 3/9"), for other ranks' errors. Cheap.
  virtual void set_phase(const std::string& phase) = 0;
  // This rank was asked to stop: the others see stop_requested() within a moment, also in the middle
  // of a validation. When all stop is decided by the next vote. Any thread.
  virtual void request_stop() noexcept {}
  virtual bool stop_requested() const noexcept { return false; }
  // Tells the others why this rank gives up; they throw it from their next wait.
  virtual void fail(const std::string& why) noexcept = 0;
  // Throws CommError if the side channel knows, or learns within `patience`, that a rank failed or
  // went silent; returns otherwise.
  virtual void check_peers(std::chrono::milliseconds patience) = 0;
  // How long a rank may keep the others waiting: their calls above throw then, and whoever waits
  // for a tensor calls still_waiting. Heartbeats do not extend it, progress (set_phase) does.
  std::chrono::duration<double> timeout() const { return timeout_; }
  // This rank has waited for `what` for longer than timeout(). Throws CommError naming those that
  // do not wait too and what they were last doing; or, when everyone waits, what each waits for.
  [[noreturn]] virtual void still_waiting(const std::string& what) = 0;
  // Everyone is done; leaving without it looks like a death to the others.
  virtual void finish() = 0;

 protected:
  explicit Control(std::chrono::duration<double> timeout = std::chrono::minutes(30))
      : timeout_(timeout) {}

 private:
  std::chrono::duration<double> timeout_;
};

// A world of one.
std::unique_ptr<Control> make_local_control();

// One rank's side of the agreement at the end of a backward pass.
struct Vote {
  std::int64_t step = 0;
  std::uint64_t plan_hash = 0;
  std::uint64_t groups = 0;  // bit i: this rank's losses belong to optimizer i
  double weight = 0;         // loss weight of this window on this rank
  bool has_data = false;
  bool stop = false;           // a signal arrived, here or at another rank
  int signal = 0;              // the one that arrived here
  bool abandoned = false;      // the window was left in the middle: nobody takes this step
  bool out_of_memory = false;  // the window could not be computed here
  bool bad_loss = false;       // NaN or infinity here
  bool save = false;           // a checkpoint is wanted
  bool time_up = false;        // max_time is over on this rank's clock
};

struct Verdict {
  double total_weight = 0;
  int contributing = 0;  // ranks whose losses have weight
  std::uint64_t groups = 0;
  bool any_data = false;
  bool stop = false;
  int signal = 0;  // what to stop for: to end it, if any rank was told so; else to come back
  bool abandoned = false;
  bool save = false;
  bool time_up = false;
  std::vector<int> dry_ranks;
  std::vector<int> out_of_memory_ranks;
  std::vector<int> bad_loss_ranks;
  bool drop_step() const { return !out_of_memory_ranks.empty() || !bad_loss_ranks.empty(); }
};

// Throws CommError if ranks are at different steps, DataError if their plans differ; both name the
// odd ranks.
Verdict agree(Control& control, const Vote& vote);

// Of the signals of two ranks (0: none): someone who ends the run (SIGINT, SIGTERM) is heeded before
// a warning that it will be taken away.
int stronger_signal(int a, int b);

// "rank 1", "ranks 1, 3 and 7".
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace tutti::trainer
