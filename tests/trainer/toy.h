// A toy problem for tests of the trainer: a two-layer regression with optional dropout, and its
// data.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "tutti/trainer/batch.h"
#include "tutti/trainer/model.h"

namespace tutti::trainer::toy {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double dropout = 0)
      : first(register_module("first", torch::nn::Linear(6, 16))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        second(register_module("second", torch::nn::Linear(16, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return second->forward(drop->forward(torch::tanh(first->forward(x))));
  }
  torch::nn::Linear first;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};

class Model : public ModuleModel {
 public:
  explicit Model(double dropout = 0, std::int64_t seed = 7) : ModuleModel(make(dropout, seed)) {}
  StepOutput training_step(const Batch& batch) override {
    auto y = module()->as<NetImpl>()->forward(batch["x"]);
    auto target = batch["y"];
    if (y.scalar_type() != torch::kDouble) {  // losses are computed in full precision
      y = y.to(torch::kFloat);
      target = target.to(torch::kFloat);
    }
    const auto loss = torch::mse_loss(y, target);
    StepOutput out;
    out.loss = loss;
    out.weight = static_cast<double>(y.size(0));
    out.stats["loss"] = loss.detach();
    out.ratios["large"] = {(y.detach().abs() > 0.5).sum().item<double>(), out.weight};
    return out;
  }

 private:
  static std::shared_ptr<torch::nn::Module> make(double dropout, std::int64_t seed) {
    torch::manual_seed(seed);
    return std::make_shared<NetImpl>(dropout);
  }
};

// `num_batches` global batches of `batch_size` examples; example i is the same whatever the
// batching.
inline std::vector<Batch> batches(int num_batches, int batch_size) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(99);
  const auto x = torch::randn({num_batches * batch_size, 6}, generator,
                              torch::TensorOptions().dtype(torch::kDouble));
  const auto y = torch::sin(x.sum(1, true));
  std::vector<Batch> out;
  for (int b = 0; b < num_batches; ++b) {
    Batch batch;
    batch.tensors["x"] = x.narrow(0, b * batch_size, batch_size).clone();
    batch.tensors["y"] = y.narrow(0, b * batch_size, batch_size).clone();
    for (int i = 0; i < batch_size; ++i)
      batch.utt_ids.push_back("utt_" + std::to_string(b * batch_size + i));
    out.push_back(std::move(batch));
  }
  return out;
}

}  // namespace tutti::trainer::toy
