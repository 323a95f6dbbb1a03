// What is trained: an interface of six functions.
//
// A training step gets a batch and gives back the *mean* loss, the weight it is a mean over
// (utterances, frames or tokens) and numbers to log. It knows nothing of ranks, precision,
// accumulation or optimizers; the loop turns means and weights into exact global averages.
//
//   class Regression final : public ModuleModel {
//    public:
//     Regression() : ModuleModel(std::make_shared<torch::nn::LinearImpl>(8, 1)) {}
//     StepOutput training_step(const Batch& batch) override {
//       auto y = module()->as<torch::nn::LinearImpl>()->forward(batch["x"]);
//       auto loss = torch::mse_loss(y, batch["y"]);
//       return {.loss = loss, .weight = double(y.size(0)), .stats = {{"loss", loss.detach()}}};
//     }
//   };
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/trainer/batch.h"

namespace tutti::trainer {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// A rate whose parts are summed over batches and ranks before dividing: WER = errors / words.
struct Ratio {
  double numerator = 0;
  double denominator = 0;
};

struct StepOutput {
  at::Tensor loss;    // 0-dim, mean over `weight`; carries the graph in training
  double weight = 1;  // same unit on every rank; 0 takes the batch out of the average
  std::map<std::string, at::Tensor> stats;  // detached 0-dim means over `weight`
  std::map<std::string, Ratio> ratios;
  // Named optimizers only: which one this loss moves, and losses that come after it, in the order
  // of their updates. Empty: all of them, or the only one.
  std::string optimizer;
  std::vector<std::pair<std::string, at::Tensor>> more_losses;
};

// Used by one thread. Owned by whoever starts the loop; outlives it.
class TrainableModel {
 public:
  virtual ~TrainableModel() = default;
  virtual StepOutput training_step(const Batch& batch) = 0;
  virtual StepOutput validation_step(const Batch& batch) { return training_step(batch); }
  // Parameters and buffers under the names of a state_dict. A shared tensor may appear twice.
  virtual NamedTensors named_parameters() = 0;
  virtual NamedTensors named_buffers() = 0;
  virtual void set_training(bool training) = 0;
  // Moves to `device` and, if `floating` is given, casts floating point parameters and buffers.
  virtual void to(at::Device device, std::optional<at::ScalarType> floating) = 0;
};

// A TrainableModel around a torch::nn::Module: four of the six functions.
class ModuleModel : public TrainableModel {
 public:
  explicit ModuleModel(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}
  NamedTensors named_parameters() override;
  NamedTensors named_buffers() override;
  void set_training(bool training) override;
  void to(at::Device device, std::optional<at::ScalarType> floating) override;
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

// One entry per tensor: a shared one keeps its first name, the others become `aliases`.
struct UniqueParameters {
  NamedTensors tensors;
  std::map<std::string, std::string> aliases;  // other name -> first name
};
UniqueParameters unique_parameters(const NamedTensors& named);

}  // namespace tutti::trainer
