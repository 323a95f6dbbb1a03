// Batch norms of all ranks in step, for the strategies. See batch_norm.h.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/trainer/batch_norm.h"
#include "tutti/trainer/collectives/collectives.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

constexpr double kNormEps = 1e-5;  // added to variances

// Of the rows of all ranks, in double.
struct Moments {
  at::Tensor mean;      // (C)
  at::Tensor inverse;   // (C), 1 / sqrt(variance + eps)
  at::Tensor unbiased;  // (C), variance as running statistics count it
  at::Tensor count;     // rows; 0-dim
};

// Whether this thread computes a block again for its backward pass (recompute.h): what the block
// keeps of its batches has been counted already.
bool recomputing();

// The layers of a model, by name. Throws ConfigError where there is none to keep in step.
std::vector<std::pair<std::string, std::shared_ptr<BatchNormImpl>>> batch_norms_of(
    TrainableModel& model);

// Keeps the batch norms of all ranks in step. In every training pass all ranks exchange the
// statistics of every layer once on the way forward, in the model's order, and once on the way
// back, in the reverse one. A rank that leaves layers out (no data, NaN, out of memory, layer drop)
// takes part with no rows, and moves its running statistics as the others do. Used by one thread
// at a time.
class NormSync {
 public:
  // `collectives`: of its own, over all ranks.
  NormSync(std::shared_ptr<Collectives> collectives, Control& control);

  void attach(TrainableModel& model, at::Device device);  // throws as batch_norms_of
  void begin(bool training);
  // Takes part in what is left of the pass.
  void settle();
  // The same beside other work, where the other ranks need both to go on; empty: nothing is left.
  std::future<void> settle_beside();

  bool active() const { return active_; }
  // Rows (M, C) of this rank; of a layer that is computed again, what it was the first time.
  const Moments& share(std::size_t layer, const at::Tensor& rows);
  const Moments& shared(std::size_t layer) const { return moments_[layer]; }
  // Over ranks, in place.
  void sum_backward(std::size_t layer, at::Tensor sums);

 private:
  void exchange(const at::Tensor& own);  // of the next layer
  void catch_up(std::size_t layer);
  void back_to(std::size_t layer);
  at::Tensor nothing(std::int64_t size) const;
  [[noreturn]] void throw_order(std::size_t layer) const;

  std::shared_ptr<Collectives> collectives_;  // shared with the world's list of what to abort
  Control& control_;
  at::Device device_ = at::kCPU;
  std::vector<std::pair<std::string, std::shared_ptr<BatchNormImpl>>> layers_;
  std::vector<Moments> moments_;  // of this pass
  std::size_t forward_ = 0;       // the next layer on the way forward
  std::size_t backward_ = 0;      // layers still to come on the way back
  bool active_ = false;
};

}  // namespace tutti::trainer
