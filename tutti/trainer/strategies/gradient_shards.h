// Sums the gradients of a sharded model over ranks while backward runs, and keeps this rank's part.
//
// When all gradients of a unit are there they are reduce-scattered and dropped; the sums of the
// micro-batches of a window are added up in shards, so accumulation costs no whole gradient. Like
// the Reducer, it starts sums in one order on all ranks, which after the first step is the order in
// which rank 0's gradients arrive, and finds parameters without gradient before the optimizer step.
// With several optimizers all units are summed in every pass: a rank without data cannot know whose
// losses the others have.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "tutti/trainer/strategies/flat_unit.h"

namespace tutti::trainer {

class GradientShards {
 public:
  // `units`: the trainable ones, on `device`. `replicas`: those that hold the same shards (hybrid),
  // or null.
  GradientShards(std::vector<FlatUnit*> units, Collectives& sharers, Collectives* replicas,
                 Control& control, MemoryMeter& meter, at::Device device);
  ~GradientShards();

  void begin(const Pass& pass);
  // Starts what is left. Throws ConfigError listing unused parameters; see Strategy::settle.
  void settle(bool complete);
  // Waits for all sums. Call it after the gatherer has settled: until then another rank may need
  // this one's gathers before it can answer.
  void drain();
  // Gradients of the parts that this optimizer moves are set when it returns.
  void finish(std::size_t optimizer);

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the hooks, which autograd owns
};

}  // namespace tutti::trainer
