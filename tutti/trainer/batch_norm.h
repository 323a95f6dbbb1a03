// Batch norm over rows, whose statistics may be those of all ranks (`trainer.sync_batchnorm`).
//
//   norm_ = register_module("norm", trainer::BatchNorm(channels));
//   rows_MC = norm_->forward(rows_MC);  // real frames only: the caller leaves padding out
//
// Parameters and buffers have torch's names, so checkpoints are the same with and without. Why a
// class of its own: torch's cannot be told to ask other ranks, nor to leave its running statistics
// alone when a block is computed again for the backward pass (recompute.h).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>

namespace tutti::trainer {

class NormSync;  // strategies/norm_sync.h
struct Moments;

class BatchNormImpl : public torch::nn::Module {
 public:
  // On the meta device there are shapes only.
  explicit BatchNormImpl(std::int64_t channels, const at::TensorOptions& options = {});
  torch::Tensor forward(const torch::Tensor& rows_MC);

  std::int64_t channels() const { return weight_.size(0); }
  // In training, statistics are those of `sync`'s ranks from now on; null: its own again.
  void set_sync(NormSync* sync, std::size_t layer) {
    sync_ = sync;
    layer_ = layer;
  }
  void note(const Moments& moments);  // moves the running statistics

 private:
  torch::Tensor weight_, bias_, running_mean_, running_var_, batches_;
  NormSync* sync_ = nullptr;
  std::size_t layer_ = 0;
};
TORCH_MODULE(BatchNorm);

}  // namespace tutti::trainer
