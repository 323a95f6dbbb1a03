// How one model lives on many ranks: `single`, `ddp`, `fsdp`.
//
// The loop calls, per micro-batch: begin(), forward and backward, settle(); per optimizer window:
// finish() after the last settle(). A group is the parameters of one optimizer; most runs have one.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/trainer/collectives/collectives.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

// One forward pass (and, in training, its backward pass) over one micro-batch.
struct Pass {
  bool training = true;
  bool first_of_window = true;  // no gradients are held yet
  bool last_of_window = true;   // gradients are summed over ranks while its backward runs
};

// The part of a parameter this rank holds: elements start .. start + part.numel(), flattened.
struct Placement {
  std::vector<std::int64_t> shape;  // of the whole parameter
  std::int64_t start = 0;
  at::Tensor part;  // flat, live; may have no elements
};
using Placements = std::map<std::string, Placement>;  // by parameter

// Bytes this rank holds for parameters and gradients; zeros where whole copies are held.
struct ShardMemory {
  std::int64_t shards = 0;    // this rank's parts of the parameters, and frozen ones
  std::int64_t gathered = 0;  // whole units, now
  std::int64_t gathered_peak = 0;
  std::int64_t gradients = 0;  // whole units' gradients and this rank's parts, now
  std::int64_t gradients_peak = 0;
  std::int64_t peak = 0;  // of the sum of the three
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  // Checks that all ranks have the same parameters (ConfigError names the odd rank and the first
  // difference) and gives them rank 0's values. Called once. Returns what optimizers update, by
  // group: the parameters themselves, or this rank's parts of them under the same names.
  virtual std::vector<NamedTensors> setup(TrainableModel& model,
                                          const std::vector<NamedTensors>& groups,
                                          at::Device device) = 0;
  virtual void begin(const Pass& pass) = 0;
  // Ends a pass. `complete`: this rank ran all of it; otherwise (no data, NaN loss, out of memory)
  // it still takes part in what the other ranks expect of it.
  virtual void settle(bool complete) = 0;
  // Gradients of the group are summed over ranks when it returns; see Reducer::finish.
  virtual void finish(std::size_t group, bool complete) = 0;
  // The squared 2-norm over all ranks' parts of the gradients: a 0-dim tensor, no host sync. All
  // ranks must call it, also with no gradients.
  virtual at::Tensor squared_norm(const std::vector<at::Tensor>& gradients) = 0;
  // The parts this rank holds; null when it holds everything.
  virtual const Placements* placements() const { return nullptr; }

  const std::string& name() const { return name_; }
  // True: setup() brings parameters to the device, in parts; a model need not fit there whole.
  bool moves_model() const { return moves_model_; }
  // True: ranks meet in every forward pass, so all must run the same number of them.
  bool lockstep() const { return lockstep_; }
  const ShardMemory& memory() const { return memory_; }

 protected:
  explicit Strategy(std::string name, bool moves_model = false, bool lockstep = false)
      : name_(std::move(name)), moves_model_(moves_model), lockstep_(lockstep) {}
  ShardMemory memory_;

 private:
  std::string name_;
  bool moves_model_;
  bool lockstep_;
};

std::unique_ptr<Strategy> make_single_strategy();
struct ReducerOptions {
  std::size_t first_bucket_bytes = 1 << 20;  // small, so that the first all-reduce starts early
  std::size_t bucket_bytes = 25 << 20;
  bool find_unused = false;  // parameters without gradient are allowed, and may differ by rank
};
class NormSync;
// `norms`: batch norms are those of all ranks; null: each rank's own.
std::unique_ptr<Strategy> make_ddp_strategy(Collectives& collectives, Control& control,
                                            const ReducerOptions& options,
                                            std::shared_ptr<NormSync> norms = nullptr);

// The sum of squares of all elements of all gradients, on their device.
at::Tensor local_squared_norm(const std::vector<at::Tensor>& gradients);

// Throws ConfigError on every rank if parameters or buffers differ in name, shape or type.
void check_same_model(TrainableModel& model, Control& control);

// "rank 1: 3 of 4 parameters got no gradient in this step: ..." with the first names.
ConfigError unused_parameters_error(int rank, const std::vector<std::string>& missing,
                                    std::size_t total, const std::string& fix);

}  // namespace tutti::trainer
