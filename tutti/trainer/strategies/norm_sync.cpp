#include "tutti/trainer/strategies/norm_sync.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

// mean (C), sum of squares around it (C), rows: they can be put together without losing digits.
at::Tensor own_moments(const at::Tensor& rows) {
  const at::TensorOptions options = rows.options().dtype(at::kDouble);
  if (rows.size(0) == 0) return at::zeros({2 * rows.size(1) + 1}, options);
  const at::Tensor mean = rows.mean(0);
  const at::Tensor squares = (rows - mean).square().sum(0);
  return at::cat({mean.to(at::kDouble), squares.to(at::kDouble),
                  at::full({1}, static_cast<double>(rows.size(0)), options)});
}

// `all`: (W, 2C + 1). Nothing is read on the host: a GPU is not waited for.
Moments combine(const at::Tensor& all) {
  const std::int64_t channels = all.size(1) / 2;
  const at::Tensor means = all.narrow(1, 0, channels), squares = all.narrow(1, channels, channels);
  const at::Tensor rows = all.narrow(1, 2 * channels, 1);
  Moments out;
  out.count = rows.sum();
  const at::Tensor divisor = out.count.clamp_min(1);
  out.mean = (means * rows).sum(0) / divisor;
  const at::Tensor around = (squares + (means - out.mean).square() * rows).sum(0);
  out.inverse = (around / divisor + kNormEps).rsqrt();
  out.unbiased = around / (out.count - 1).clamp_min(1);
  return out;
}

}  // namespace

std::vector<std::pair<std::string, std::shared_ptr<BatchNormImpl>>> batch_norms_of(
    TrainableModel& model) {
  std::vector<std::pair<std::string, std::shared_ptr<BatchNormImpl>>> out;
  if (auto* whole = dynamic_cast<ModuleModel*>(&model))
    for (const auto& item : whole->module()->named_modules("", /*include_self=*/false))
      if (auto norm = std::dynamic_pointer_cast<BatchNormImpl>(item.value()))
        out.emplace_back(item.key(), std::move(norm));
  if (out.empty())
    throw ConfigError(
        "trainer.sync_batchnorm: got true, but this model has no batch norm that ranks can share",
        "remove it; conformers have one, and a plugin's model that uses tutti::trainer::BatchNorm");
  return out;
}

NormSync::NormSync(std::shared_ptr<Collectives> collectives, Control& control)
    : collectives_(std::move(collectives)), control_(control) {}

void NormSync::attach(TrainableModel& model, at::Device device) {
  layers_ = batch_norms_of(model);
  device_ = device;
  moments_.resize(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i].second->set_sync(this, i);
}

void NormSync::begin(bool training) {
  active_ = training;
  forward_ = 0;
  backward_ = layers_.size();
}

at::Tensor NormSync::nothing(std::int64_t size) const {
  return at::zeros({size}, at::TensorOptions(at::kDouble).device(device_));
}

void NormSync::throw_order(std::size_t layer) const {
  throw ConfigError(
      fmt::format("trainer.sync_batchnorm: '{}' is used twice in one step, or out of order",
                  layers_[layer].first),
      "register norms in the order of their use, one for each place");
}

void NormSync::exchange(const at::Tensor& own) {
  torch::NoGradGuard no_grad;
  const std::int64_t world = collectives_->world_size();
  const at::Tensor all = at::empty({world * own.numel()}, own.options());
  wait(*collectives_->all_gather(all, own), control_, "sharing statistics of batch norm");
  moments_[forward_] = combine(all.view({world, own.numel()}));
  layers_[forward_].second->note(moments_[forward_]);
  ++forward_;
}

// Layers before this one were left out here.
void NormSync::catch_up(std::size_t layer) {
  while (forward_ < layer) exchange(nothing(2 * layers_[forward_].second->channels() + 1));
}

const Moments& NormSync::share(std::size_t layer, const at::Tensor& rows) {
  if (layer < forward_) throw_order(layer);
  catch_up(layer);
  exchange(own_moments(rows));
  return moments_[layer];
}

void NormSync::back_to(std::size_t layer) {
  catch_up(layers_.size());
  while (backward_ > layer) {
    const at::Tensor none = nothing(2 * layers_[--backward_].second->channels());
    wait(*collectives_->all_reduce(none), control_, "sharing gradients of batch norm");
  }
}

void NormSync::sum_backward(std::size_t layer, at::Tensor sums) {
  if (layer >= backward_) throw_order(layer);
  back_to(layer + 1);
  backward_ = layer;
  wait(*collectives_->all_reduce(sums), control_, "sharing gradients of batch norm");
}

void NormSync::settle() {
  if (active_) back_to(0);
  active_ = false;
}

std::future<void> NormSync::settle_beside() {
  if (!active_ || backward_ == 0) {
    active_ = false;
    return {};
  }
  return std::async(std::launch::async, [this] {
    const c10::DeviceGuard guard(device_);
    settle();
  });
}

}  // namespace tutti::trainer
