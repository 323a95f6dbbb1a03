#include "tutti/trainer/optim/optimizer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <vector>

#include "tutti/core/error.h"
#include "tutti/trainer/optim/updates.h"

namespace tutti::trainer {

OptimizerOptions default_options(OptimizerKind kind) {
  OptimizerOptions options;
  options.kind = kind;
  if (kind == OptimizerKind::kAdamW) options.weight_decay = 0.01;
  return options;
}

Optimizer::Optimizer(double base_lr, NamedTensors parameters)
    : base_lr_(base_lr), parameters_(std::move(parameters)), slots_(parameters_.size()) {}

void Optimizer::set_momentum(double) {
  throw ConfigError("scheduler: it moves the momentum, which this optimizer does not have",
                    "set cycle_momentum: false");
}

void Optimizer::step(double lr, double gradient_factor) {
  torch::NoGradGuard no_grad;
  update(lr, gradient_factor);
}

bool Optimizer::step_clipped(double lr, const ClippedOnDevice& clipped) {
  torch::NoGradGuard no_grad;
  return update_clipped(lr, clipped);
}

void Optimizer::uncount_step() {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].second.grad().defined()) --slots_[i].step;
}

void Optimizer::zero_grad() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> out;
  out.reserve(parameters_.size());
  for (const auto& [name, parameter] : parameters_)
    if (parameter.grad().defined()) out.push_back(parameter.grad());
  return out;
}

at::Tensor& Optimizer::slot_tensor(std::size_t index, const std::string& name) {
  at::Tensor& tensor = slots_[index].tensors[name];
  // contiguous, so that the one-pass loops can walk it beside the parameter
  if (!tensor.defined())
    tensor = at::zeros_like(parameters_[index].second.detach(), at::MemoryFormat::Contiguous);
  return tensor;
}

std::map<std::string, at::Tensor> Optimizer::state() const {
  std::map<std::string, at::Tensor> out;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].step == 0) continue;
    out["step/" + parameters_[i].first] = at::full({}, slots_[i].step, at::kLong);
    for (const auto& [name, tensor] : slots_[i].tensors)
      out[name + "/" + parameters_[i].first] = tensor;
  }
  return out;
}

void Optimizer::load_state(const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < parameters_.size(); ++i) index[parameters_[i].first] = i;
  slots_.assign(parameters_.size(), {});
  for (const auto& [key, tensor] : state) {
    const std::size_t slash = key.find('/');
    const std::string kind = key.substr(0, slash);
    const std::string name = slash == std::string::npos ? "" : key.substr(slash + 1);
    const auto found = index.find(name);
    if (found == index.end())
      throw DataError(fmt::format("optimizer state: there is no parameter '{}'", name),
                      "resume with the model the checkpoint was made with, or use init instead");
    const at::Tensor& parameter = parameters_[found->second].second;
    if (kind == "step") {
      slots_[found->second].step = tensor.item<std::int64_t>();
      continue;
    }
    if (tensor.sizes() != parameter.sizes())
      throw DataError(
          fmt::format("optimizer state '{}' has another shape than its parameter", key));
    slots_[found->second].tensors[kind] =
        tensor.to(parameter.device()).clone(at::MemoryFormat::Contiguous);
  }
}

namespace {

class Adam final : public Optimizer {
 public:
  Adam(const OptimizerOptions& options, NamedTensors parameters)
      : Optimizer(options.lr, std::move(parameters)), options_(options) {}
  void set_momentum(double momentum) override { options_.beta1 = momentum; }
  void update(double lr, double gradient_factor) override {
    std::vector<AdamUpdate> updates = next_updates(lr, gradient_factor);
    trainer::apply(options_, updates);  // std has one, too
  }
  bool update_clipped(double lr, const ClippedOnDevice& clipped) override {
    std::vector<AdamUpdate> updates = next_updates(lr, 1.0);
    if (apply_clipped(options_, updates, clipped)) return true;
    uncount_step();
    return false;
  }

 private:
  // Counts them.
  std::vector<AdamUpdate> next_updates(double lr, double gradient_factor) {
    std::vector<AdamUpdate> updates;
    updates.reserve(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& parameter = parameters_[i].second;
      if (!parameter.grad().defined()) continue;
      updates.push_back({.parameter = parameter,
                         .gradient = parameter.grad(),
                         .exp_avg = slot_tensor(i, "exp_avg"),
                         .exp_avg_sq = slot_tensor(i, "exp_avg_sq"),
                         .step = ++slots_[i].step,
                         .lr = lr,
                         .gradient_factor = gradient_factor});
      if (options_.amsgrad) updates.back().max_exp_avg_sq = slot_tensor(i, "max_exp_avg_sq");
    }
    return updates;
  }

  OptimizerOptions options_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, NamedTensors parameters)
      : Optimizer(options.lr, std::move(parameters)), options_(options) {}
  void set_momentum(double momentum) override {
    if (options_.momentum == 0) return Optimizer::set_momentum(momentum);
    options_.momentum = momentum;
  }
  void update(double lr, double gradient_factor) override {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& parameter = parameters_[i].second;
      if (!parameter.grad().defined()) continue;
      SgdUpdate update{.parameter = parameter,
                       .gradient = parameter.grad(),
                       .first = slots_[i].step++ == 0,
                       .lr = lr,
                       .gradient_factor = gradient_factor};
      if (options_.momentum != 0) update.momentum_buffer = slot_tensor(i, "momentum_buffer");
      apply(options_, update);
    }
  }

 private:
  OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          NamedTensors parameters) {
  if (options.kind == OptimizerKind::kSgd)
    return std::make_unique<Sgd>(options, std::move(parameters));
  return std::make_unique<Adam>(options, std::move(parameters));
}

}  // namespace tutti::trainer
