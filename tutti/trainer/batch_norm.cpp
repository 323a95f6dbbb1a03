#include "tutti/trainer/batch_norm.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

constexpr double kMomentum = 0.1;
constexpr double kEps = 1e-5;

at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

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
  out.inverse = (around / divisor + kEps).rsqrt();
  out.unbiased = around / (out.count - 1).clamp_min(1);
  return out;
}

struct NormCall : torch::CustomClassHolder {
  NormCall(NormSync& s, std::size_t l, bool a) : sync(s), layer(l), again(a) {}
  NormSync& sync;
  std::size_t layer;
  bool again;  // its block is computed again: everything is known
};

class SyncedNorm : public torch::autograd::Function<SyncedNorm> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& rows,
                               const torch::Tensor& weight, const torch::Tensor& bias,
                               c10::intrusive_ptr<NormCall> call) {
    const at::ScalarType wide = wide_type(rows);
    const torch::Tensor x = rows.to(wide);
    const Moments& moments =
        call->again ? call->sync.shared(call->layer) : call->sync.share(call->layer, x);
    const torch::Tensor mean = moments.mean.to(wide), inverse = moments.inverse.to(wide);
    context->save_for_backward({rows, weight, mean, inverse, moments.count.to(wide)});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return ((x - mean) * (inverse * weight.to(wide)) + bias.to(wide)).to(rows.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &rows = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3],
                        &count = saved[4];
    const auto call =
        c10::static_intrusive_pointer_cast<NormCall>(context->saved_data["call"].toCapsule());
    const at::ScalarType wide = wide_type(rows);
    const std::int64_t channels = weight.size(0);
    const torch::Tensor dy = gradients[0].to(wide);
    const torch::Tensor normal = (rows.to(wide) - mean) * inverse;
    const torch::Tensor own = at::cat({dy.sum(0), (dy * normal).sum(0)});
    const torch::Tensor all = own.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    call->sync.sum_backward(call->layer, all);
    const torch::Tensor shares = all.to(wide) / count;
    const torch::Tensor dx =
        (dy - shares.narrow(0, 0, channels) - normal * shares.narrow(0, channels, channels)) *
        (inverse * weight.to(wide));
    // Gradients of parameters are summed over ranks by the strategy, as all others.
    return {dx.to(rows.scalar_type()), own.narrow(0, channels, channels).to(weight.scalar_type()),
            own.narrow(0, 0, channels).to(weight.scalar_type()), torch::Tensor()};
  }
};

}  // namespace

BatchNormImpl::BatchNormImpl(std::int64_t channels, const at::TensorOptions& options) {
  const at::TensorOptions floating = options.dtype(at::kFloat);
  weight_ = register_parameter("weight", torch::ones({channels}, floating));
  bias_ = register_parameter("bias", torch::zeros({channels}, floating));
  running_mean_ = register_buffer("running_mean", torch::zeros({channels}, floating));
  running_var_ = register_buffer("running_var", torch::ones({channels}, floating));
  batches_ = register_buffer("num_batches_tracked", torch::zeros({}, options.dtype(at::kLong)));
}

torch::Tensor BatchNormImpl::forward(const torch::Tensor& rows_MC) {
  const bool training = is_training(), again = recomputing();
  if (training && sync_ != nullptr && sync_->active())
    return SyncedNorm::apply(rows_MC, weight_, bias_,
                             c10::make_intrusive<NormCall>(*sync_, layer_, again));
  if (training && !again) batches_.add_(1);
  // Without running statistics torch counts those of the batch and moves none.
  const bool moves = !training || !again;
  return torch::batch_norm(rows_MC, weight_, bias_, moves ? running_mean_ : torch::Tensor(),
                           moves ? running_var_ : torch::Tensor(), training, kMomentum, kEps,
                           /*cudnn_enabled=*/true);
}

void BatchNormImpl::note(const Moments& moments) {
  torch::NoGradGuard no_grad;
  // No rank had a row: nothing moves.
  const at::Tensor some = (moments.count > 0).to(at::kDouble);
  const auto move = [&](at::Tensor& running, const at::Tensor& now) {
    running.copy_(running + some * kMomentum * (now - running));
  };
  move(running_mean_, moments.mean);
  move(running_var_, moments.unbiased);
  batches_.add_(some.to(at::kLong));
}

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
