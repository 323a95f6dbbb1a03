// Where the gradients of recorded passes add up: one piece of memory for all parameters, and a few
// kernels for all of them where autograd would launch one for each. Internal to speech/.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace tutti::speech {

class GradientSums {
 public:
  void make_for(const std::vector<torch::Tensor>& parameters) {
    if (parameters_.size() == parameters.size() && flat_.defined() &&
        flat_.device() == parameters[0].device())
      return;
    parameters_ = parameters;
    places_.clear();
    std::int64_t total = 0;
    for (const torch::Tensor& p : parameters) {
      places_.push_back(total);
      total += (p.numel() + kAlignment - 1) / kAlignment * kAlignment;
    }
    flat_ = at::empty({total}, parameters[0].options());
  }
  // Adds them; returns those which autograd has to enter, as the parameters have none yet.
  std::vector<torch::Tensor> add(const std::vector<torch::Tensor>& grads) {
    std::vector<torch::Tensor> first(grads.size()), to, from, added, more;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      const torch::Tensor before = parameters_[i].grad();
      if (before.defined()) {
        added.push_back(before);
        more.push_back(grads[i]);
        continue;
      }
      first[i] = flat_.narrow(0, places_[i], parameters_[i].numel()).view(parameters_[i].sizes());
      to.push_back(first[i].detach());
      from.push_back(grads[i]);
    }
    const torch::NoGradGuard no_grad;
    if (!to.empty()) at::_foreach_copy_(to, from);
    if (!added.empty()) at::_foreach_add_(added, more);
    return first;
  }

 private:
  static constexpr std::int64_t kAlignment = 64;  // elements

  std::vector<torch::Tensor> parameters_;
  std::vector<std::int64_t> places_;
  torch::Tensor flat_;
};

}  // namespace tutti::speech
