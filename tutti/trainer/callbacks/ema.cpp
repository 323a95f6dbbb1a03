#include <torch/torch.h>

#include "tutti/trainer/callbacks/callback.h"

namespace tutti::trainer {
namespace {

class Ema final : public Callback {
 public:
  explicit Ema(EmaOptions options) : options_(options) {}

  void on_step(const Moment& moment) override {
    if (moment.step < options_.start_step || moment.step % options_.every_n_steps != 0) return;
    torch::NoGradGuard no_grad;
    for (const auto& [name, p] : moment.weights) {
      at::Tensor& average = averages_[name];
      if (!average.defined())
        average = p.detach().clone();
      else
        average.mul_(options_.decay).add_(p.detach(), 1 - options_.decay);
    }
  }

  void before_validation(const Moment& moment) override { swap(moment.weights); }
  void after_validation(const Moment& moment) override { swap(moment.weights); }

  void save(Checkpoint& checkpoint) const override {
    for (const auto& [name, average] : averages_)
      checkpoint.extra["ema/" + name] = average.to(at::kCPU).clone();
  }
  void load(const Checkpoint& checkpoint) override {
    for (const auto& [name, tensor] : checkpoint.extra)
      if (name.rfind("ema/", 0) == 0) averages_[name.substr(4)] = tensor.clone();
  }

 private:
  // Exchanges values, not tensors: optimizers and reducers hold on to the parameters.
  void swap(const NamedTensors& weights) {
    if (averages_.empty()) return;
    torch::NoGradGuard no_grad;
    for (const auto& [name, p] : weights) {
      at::Tensor& average = averages_.at(name);
      const at::Tensor current = p.detach().clone();
      p.detach().copy_(average);
      average = average.to(p.device());
      average.copy_(current);
    }
  }

  EmaOptions options_;
  TensorMap averages_;  // by parameter
};

}  // namespace

std::unique_ptr<Callback> make_ema(EmaOptions options) { return std::make_unique<Ema>(options); }

}  // namespace tutti::trainer
