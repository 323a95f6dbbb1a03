#include "tutti/trainer/callbacks/weight_average.h"

#include <torch/torch.h>

#include "tutti/trainer/callbacks/callback.h"

namespace tutti::trainer {

static const std::string kTrained = "trained/";

// A resumed average comes from a file, on the CPU.
at::Tensor& WeightAverage::beside(const std::string& name, const at::Tensor& weight) {
  at::Tensor& average = tensors_.at(name);
  if (average.device() != weight.device()) average = average.to(weight.device());
  return average;
}

void WeightAverage::move_towards(const NamedTensors& weights, double share) {
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> averages, current;
  for (const auto& [name, weight] : weights) {
    if (!tensors_.count(name)) {
      tensors_[name] = weight.detach().clone();
      continue;
    }
    averages.push_back(beside(name, weight));
    current.push_back(weight.detach());
  }
  if (averages.empty()) return;
  at::_foreach_mul_(averages, 1 - share);
  at::_foreach_add_(averages, current, share);
}

void WeightAverage::swap(const NamedTensors& weights) {
  if (empty()) return;
  torch::NoGradGuard no_grad;
  for (const auto& [name, weight] : weights) {
    at::Tensor& average = beside(name, weight);
    const at::Tensor current = weight.detach().clone();
    weight.detach().copy_(average);
    average.copy_(current);
  }
}

void deliver(const TensorMap& averages, Checkpoint& checkpoint) {
  for (const auto& [name, average] : averages) {
    at::Tensor& delivered = checkpoint.model.at(name);
    checkpoint.extra[kTrained + name] = delivered;
    delivered = average.device().is_cpu() ? average.clone() : average.to(at::kCPU);
  }
}

TensorMap delivered(const Checkpoint& checkpoint) {
  TensorMap averages;
  for (const auto& [name, tensor] : checkpoint.model)
    if (checkpoint.extra.count(kTrained + name)) averages[name] = tensor.clone();
  return averages;
}

TensorMap trained(const Checkpoint& checkpoint) {
  TensorMap weights = checkpoint.model;
  for (auto& [name, tensor] : weights) {
    const auto found = checkpoint.extra.find(kTrained + name);
    if (found != checkpoint.extra.end()) tensor = found->second;
  }
  return weights;
}

}  // namespace tutti::trainer
