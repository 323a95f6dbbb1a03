// Sums gradients over ranks while backward is still running.
//
// The algorithm is torch DDP's: gradients are copied into flat buckets as autograd produces them, a
// whole bucket at a time, which is then all-reduced, in an order that is the same on every rank. After the first
// step buckets are rebuilt in the order in which rank 0's gradients really arrived. Two things are
// different, and are why we have our own:
//   * a parameter without gradient is found at the end of this backward, *before* the optimizer
//     step, and named; torch notices in the next forward, when ranks have already diverged;
//   * gradients are summed, not averaged: the loop divides by the true global weight.
//
//   reducer.arm();                  // only before the last micro-batch of a window
//   loss.backward();
//   reducer.finish(true);           // p.grad() now holds the sum over ranks
//
// After finish() gradients are views into the buckets: set them undefined to clear, never
// detach_(). Hooks run on autograd's threads; everything else on one thread. The reducer must
// outlive backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/trainer/collectives/collectives.h"
#include "tutti/trainer/model.h"
#include "tutti/trainer/strategies/strategy.h"

namespace tutti::trainer {

class Reducer {
 public:
  // `parameters`: unique, the same on every rank (the strategy checks). References must outlive it.
  Reducer(NamedTensors parameters, Collectives& collectives, Control& control,
          ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void arm();
  // Waits until all buckets are summed. `complete`: this rank ran the whole backward pass;
  // otherwise (no data, NaN loss, out of memory) it contributes what it has, and zeros. Throws
  // ConfigError listing parameters without gradient, CommError when a rank is missing.
  void finish(bool complete);

  // Parameter indices by bucket, in launch order (for tests and the start-up log).
  std::vector<std::vector<std::size_t>> buckets() const;

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the hooks, which autograd owns
};

}  // namespace tutti::trainer
