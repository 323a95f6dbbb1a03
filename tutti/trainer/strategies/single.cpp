#include <torch/torch.h>

#include "tutti/trainer/strategies/strategy.h"

namespace tutti::trainer {
namespace {

class SingleStrategy final : public Strategy {
 public:
  SingleStrategy() : Strategy("single") {}
  std::vector<NamedTensors> setup(TrainableModel&, const std::vector<NamedTensors>& groups,
                                  at::Device) override {
    return groups;
  }
  void begin(const Pass&) override {}
  void settle(bool) override {}
  void finish(std::size_t, bool) override {}
  at::Tensor squared_norm(const std::vector<at::Tensor>& gradients) override {
    return local_squared_norm(gradients);
  }
};

}  // namespace

std::unique_ptr<Strategy> make_single_strategy() { return std::make_unique<SingleStrategy>(); }

at::Tensor local_squared_norm(const std::vector<at::Tensor>& gradients) {
  torch::NoGradGuard no_grad;
  if (gradients.empty()) return at::zeros({});
  // bf16 gradients would lose the small terms of the sum.
  const std::vector<at::Tensor> norms = at::_foreach_norm(gradients, 2);
  const auto wide = norms[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::stack(norms).to(wide).square().sum();
}

}  // namespace tutti::trainer
