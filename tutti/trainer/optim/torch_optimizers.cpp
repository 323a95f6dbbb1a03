// torch's other optimizers, parameter by parameter with torch's operations. State has torch's names.
#include <torch/torch.h>

#include <cmath>

#include "tutti/trainer/optim/optimizer.h"

namespace tutti::trainer {
namespace {

// Walks over the parameters that have a gradient.
template <class Settings>
class Simple : public Optimizer {
 public:
  Simple(const Settings& settings, NamedTensors parameters)
      : Optimizer(settings.lr, std::move(parameters)), s_(settings) {}

 protected:
  // One update of parameter `i`; its gradient has the weight decay in it. slots_[i].step counts this
  // update.
  virtual void update_one(std::size_t i, at::Tensor& parameter, const at::Tensor& gradient,
                          double lr) = 0;

  void update(double lr, double gradient_factor) final {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& parameter = parameters_[i].second;
      if (!parameter.grad().defined()) continue;
      at::Tensor gradient =
          gradient_factor == 1 ? parameter.grad() : parameter.grad() * gradient_factor;
      if (s_.weight_decay != 0) gradient = gradient.add(parameter.detach(), s_.weight_decay);
      ++slots_[i].step;
      update_one(i, parameter, gradient, lr);
    }
  }
  double step_of(std::size_t i) const { return static_cast<double>(slots_[i].step); }

  Settings s_;
};

class RAdam final : public Simple<config::RAdamSettings> {
 public:
  using Simple::Simple;
  void set_momentum(double momentum) override { s_.betas[0] = momentum; }

 private:
  void update_one(std::size_t i, at::Tensor& parameter, const at::Tensor& gradient,
                  double lr) override {
    const double beta1 = s_.betas[0], beta2 = s_.betas[1], t = step_of(i);
    at::Tensor& mean = slot_tensor(i, "exp_avg");
    at::Tensor& square = slot_tensor(i, "exp_avg_sq");
    mean.mul_(beta1).add_(gradient, 1 - beta1);
    square.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
    const double rho_inf = 2 / (1 - beta2) - 1;
    const double rho = rho_inf - 2 * t * std::pow(beta2, t) / correction2;
    if (rho <= 5) {
      parameter.add_(mean, -lr / correction1);
      return;
    }
    const double rect =
        std::sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
    parameter.addcdiv_(mean, square.sqrt().add_(s_.eps),
                       -lr / correction1 * rect * std::sqrt(correction2));
  }
};

class NAdam final : public Simple<config::NAdamSettings> {
 public:
  using Simple::Simple;
  void set_momentum(double momentum) override { s_.betas[0] = momentum; }

 private:
  double mu(double t) const {
    return s_.betas[0] * (1 - 0.5 * std::pow(0.96, t * s_.momentum_decay));
  }
  void update_one(std::size_t i, at::Tensor& parameter, const at::Tensor& gradient,
                  double lr) override {
    const double beta1 = s_.betas[0], beta2 = s_.betas[1], t = step_of(i);
    at::Tensor& mean = slot_tensor(i, "exp_avg");
    at::Tensor& square = slot_tensor(i, "exp_avg_sq");
    products_.resize(parameters_.size());
    Product& product = products_[i];
    for (; product.step < slots_[i].step; ++product.step)  // all of them after a resume
      product.value *= mu(static_cast<double>(product.step + 1));
    mean.mul_(beta1).add_(gradient, 1 - beta1);
    square.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    const at::Tensor denominator = square.div(1 - std::pow(beta2, t)).sqrt_().add_(s_.eps);
    parameter.addcdiv_(gradient, denominator, -lr * (1 - mu(t)) / (1 - product.value));
    parameter.addcdiv_(mean, denominator, -lr * mu(t + 1) / (1 - product.value * mu(t + 1)));
  }

  struct Product {  // of all mu so far
    double value = 1;
    std::int64_t step = 0;
  };
  std::vector<Product> products_;  // by parameter
};

class Adagrad final : public Simple<config::AdagradSettings> {
 public:
  using Simple::Simple;

 private:
  void update_one(std::size_t i, at::Tensor& parameter, const at::Tensor& gradient,
                  double lr) override {
    at::Tensor& sum = slots_[i].tensors["sum"];
    if (!sum.defined())
      sum = at::full_like(parameter.detach(), s_.initial_accumulator_value,
                          at::MemoryFormat::Contiguous);
    sum.addcmul_(gradient, gradient);
    parameter.addcdiv_(gradient, sum.sqrt().add_(s_.eps),
                       -lr / (1 + (step_of(i) - 1) * s_.lr_decay));
  }
};

class Adadelta final : public Simple<config::AdadeltaSettings> {
 public:
  using Simple::Simple;

 private:
  void update_one(std::size_t i, at::Tensor& parameter, const at::Tensor& gradient,
                  double lr) override {
    at::Tensor& square = slot_tensor(i, "square_avg");
    at::Tensor& steps = slot_tensor(i, "acc_delta");
    square.mul_(s_.rho).addcmul_(gradient, gradient, 1 - s_.rho);
    const at::Tensor step =
        steps.add(s_.eps).sqrt_().div_(square.add(s_.eps).sqrt_()).mul_(gradient);
    steps.mul_(s_.rho).addcmul_(step, step, 1 - s_.rho);
    parameter.add_(step, -lr);
  }
};

class Rmsprop final : public Simple<config::RmspropSettings> {
 public:
  using Simple::Simple;
  void set_momentum(double momentum) override {
    if (s_.momentum == 0) return Optimizer::set_momentum(momentum);
    s_.momentum = momentum;
  }

 private:
  void update_one(std::size_t i, at::Tensor& parameter, const at::Tensor& gradient,
                  double lr) override {
    at::Tensor& square = slot_tensor(i, "square_avg");
    square.mul_(s_.alpha).addcmul_(gradient, gradient, 1 - s_.alpha);
    at::Tensor denominator = square;
    if (s_.centered) {
      at::Tensor& mean = slot_tensor(i, "grad_avg");
      mean.mul_(s_.alpha).add_(gradient, 1 - s_.alpha);
      denominator = square.addcmul(mean, mean, -1);
    }
    denominator = denominator.sqrt().add_(s_.eps);
    if (s_.momentum == 0) {
      parameter.addcdiv_(gradient, denominator, -lr);
      return;
    }
    at::Tensor& buffer = slot_tensor(i, "momentum_buffer");
    buffer.mul_(s_.momentum).addcdiv_(gradient, denominator);
    parameter.add_(buffer, -lr);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const config::RAdamSettings& s, NamedTensors parameters) {
  return std::make_unique<RAdam>(s, std::move(parameters));
}
std::unique_ptr<Optimizer> make_optimizer(const config::NAdamSettings& s, NamedTensors parameters) {
  return std::make_unique<NAdam>(s, std::move(parameters));
}
std::unique_ptr<Optimizer> make_optimizer(const config::AdagradSettings& s,
                                          NamedTensors parameters) {
  return std::make_unique<Adagrad>(s, std::move(parameters));
}
std::unique_ptr<Optimizer> make_optimizer(const config::AdadeltaSettings& s,
                                          NamedTensors parameters) {
  return std::make_unique<Adadelta>(s, std::move(parameters));
}
std::unique_ptr<Optimizer> make_optimizer(const config::RmspropSettings& s,
                                          NamedTensors parameters) {
  return std::make_unique<Rmsprop>(s, std::move(parameters));
}

}  // namespace tutti::trainer
