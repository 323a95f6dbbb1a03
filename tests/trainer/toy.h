// A toy problem for tests of the trainer: a two-layer regression with optional dropout, and its
// data.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "tutti/core/subprocess.h"
#include "tutti/trainer/batch.h"
#include "tutti/trainer/batch_norm.h"
#include "tutti/trainer/model.h"
#include "tutti/trainer/recompute.h"

namespace tutti::trainer::toy {

struct NetBase : torch::nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};

struct NetImpl : NetBase {
  explicit NetImpl(double dropout = 0)
      : first(register_module("first", torch::nn::Linear(6, 16))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        second(register_module("second", torch::nn::Linear(16, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) override {
    return second->forward(drop->forward(torch::tanh(first->forward(x))));
  }
  torch::nn::Linear first;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};

// A stack of equal blocks: something worth cutting into units.
struct BlockImpl : torch::nn::Module, Recomputable {
  BlockImpl(int width, double dropout)
      : inner(register_module("inner", torch::nn::Linear(width, 2 * width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<std::int64_t>{width}))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        outer(register_module("outer", torch::nn::Linear(2 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    if (!recomputes()) return compute(x);
    return checkpointed([this](const torch::Tensor& in) { return compute(in); }, x, parameters());
  }
  torch::Tensor compute(const torch::Tensor& in) {
    // Norms want one type, and more bits than autocast on a CPU gives them.
    const torch::Tensor x = in.scalar_type() == torch::kDouble ? in : in.to(torch::kFloat);
    return x + outer->forward(drop->forward(torch::tanh(inner->forward(norm->forward(x)))));
  }
  torch::nn::Linear inner;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout drop;
  torch::nn::Linear outer;
};
TORCH_MODULE(Block);

struct DeepNetImpl : NetBase {
  DeepNetImpl(int width, int depth, double dropout)
      : first(register_module("first", torch::nn::Linear(6, width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        last(register_module("last", torch::nn::Linear(width, 1))) {
    for (int i = 0; i < depth; ++i) blocks->push_back(Block(width, dropout));
  }
  torch::Tensor forward(const torch::Tensor& x) override {
    torch::Tensor h = first->forward(x);
    for (const auto& block : *blocks) h = block->as<BlockImpl>()->forward(h);
    return last->forward(h);
  }
  torch::nn::Linear first;
  torch::nn::ModuleList blocks;
  torch::nn::Linear last;
};

// With running statistics.
struct NormBlockImpl : torch::nn::Module, Recomputable {
  NormBlockImpl()
      : inner(register_module("inner", torch::nn::Linear(6, 6))),
        norm(register_module("norm", BatchNorm(6))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto compute = [this](const torch::Tensor& in) {
      return in + norm->forward(torch::tanh(inner->forward(in)));
    };
    return recomputes() ? checkpointed(compute, x, parameters()) : compute(x);
  }
  torch::nn::Linear inner;
  BatchNorm norm;
};
TORCH_MODULE(NormBlock);

struct NormNetImpl : NetBase {
  NormNetImpl()
      : norm(register_module("norm", BatchNorm(6))),
        blocks(register_module("blocks", torch::nn::ModuleList(NormBlock(), NormBlock()))),
        last(register_module("last", torch::nn::Linear(6, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) override {
    torch::Tensor h = norm->forward(x);
    for (const auto& block : *blocks) h = block->as<NormBlockImpl>()->forward(h);
    return last->forward(h);
  }
  BatchNorm norm;
  torch::nn::ModuleList blocks;
  torch::nn::Linear last;
};

class Model : public ModuleModel {
 public:
  explicit Model(double dropout = 0, std::int64_t seed = 7) : ModuleModel(make(dropout, seed)) {}
  explicit Model(std::shared_ptr<NetBase> net) : ModuleModel(std::move(net)) {}
  StepOutput training_step(const Batch& batch) override {
    auto y = std::dynamic_pointer_cast<NetBase>(module())->forward(batch["x"]);
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

struct TwoPartsImpl : torch::nn::Module {
  TwoPartsImpl()
      : maker(register_module("maker", torch::nn::Linear(6, 1))),
        critic(register_module("critic", torch::nn::Linear(1, 1))) {}
  torch::nn::Linear maker, critic;
};

// Two optimizers. The maker's loss runs through the critic, which must not move by it.
class Adversaries final : public ModuleModel {
 public:
  // The critic has a loss in every n-th step; 0: never.
  explicit Adversaries(int critic_every = 1)
      : ModuleModel(std::make_shared<TwoPartsImpl>()), critic_every(critic_every) {}
  StepOutput training_step(const Batch& batch) override {
    auto& net = *module()->as<TwoPartsImpl>();
    const auto made = net.maker->forward(batch["x"]);
    StepOutput out;
    out.optimizer = "maker";
    out.loss = net.critic->forward(made).square().mean();
    out.weight = static_cast<double>(made.size(0));
    out.stats["loss"] = out.loss.detach();
    if (critic_every > 0 && steps_++ % critic_every == 0)
      out.more_losses = {{"critic", (net.critic->forward(made.detach()) - 1).square().mean()}};
    return out;
  }
  int critic_every;

 private:
  int steps_ = 0;
};

// Gradients of NaN with a finite loss, from some step on.
class BadGradients final : public Model {
 public:
  explicit BadGradients(int from) : from_(from) {}
  StepOutput training_step(const Batch& batch) override {
    StepOutput out = Model::training_step(batch);
    if (calls_++ >= from_) {
      const auto w = module()->named_parameters()["first.weight"].flatten()[0];
      out.loss = out.loss + torch::sqrt(w - w.detach());
    }
    return out;
  }
  StepOutput validation_step(const Batch& batch) override { return Model::training_step(batch); }

 private:
  int from_;
  int calls_ = 0;
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
