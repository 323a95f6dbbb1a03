// A running average of the weights, beside them on their device. Internal to callbacks/.
#pragma once

#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer {

class WeightAverage {
 public:
  bool empty() const { return tensors_.empty(); }
  const TensorMap& tensors() const { return tensors_; }
  // As a checkpoint had them: on the CPU until they are used.
  void set(TensorMap tensors) { tensors_ = std::move(tensors); }
  // average += share x (weights - average); the first time: the weights.
  void move_towards(const NamedTensors& weights, double share);
  // Exchanges values, not tensors: optimizers and reducers hold on to the parameters. Nothing
  // happens while there is no average.
  void swap(const NamedTensors& weights);

 private:
  at::Tensor& beside(const std::string& name, const at::Tensor& weight);
  TensorMap tensors_;  // by parameter
};

}  // namespace tutti::trainer
