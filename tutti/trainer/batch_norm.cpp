#include "tutti/trainer/batch_norm.h"

#include <torch/torch.h>

#include "tutti/trainer/strategies/norm_sync.h"

namespace tutti::trainer {
namespace {

constexpr double kMomentum = 0.1;

at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
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
                           moves ? running_var_ : torch::Tensor(), training, kMomentum, kNormEps,
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

}  // namespace tutti::trainer
