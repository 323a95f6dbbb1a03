#include "tutti/trainer/optim/updates.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace tutti::trainer {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements per task: below this a thread costs more

bool one_pass(const at::Tensor& parameter, const at::Tensor& gradient) {
  return parameter.device().is_cpu() && parameter.is_contiguous() && gradient.is_contiguous() &&
         gradient.scalar_type() == parameter.scalar_type() &&
         (parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble);
}

struct AdamScalars {
  double decay = 1;        // decoupled: p *= decay
  double l2 = 0;           // coupled: g += l2 * p
  double step_size = 0;    // lr / (1 - beta1^t)
  double denom_scale = 1;  // 1 / sqrt(1 - beta2^t)
};

AdamScalars scalars(const OptimizerOptions& o, const AdamUpdate& u) {
  const auto t = static_cast<double>(u.step);
  AdamScalars s;
  if (o.kind == OptimizerKind::kAdamW)
    s.decay = 1 - u.lr * o.weight_decay;
  else
    s.l2 = o.weight_decay;
  s.step_size = u.lr / (1 - std::pow(o.beta1, t));
  s.denom_scale = 1 / std::sqrt(1 - std::pow(o.beta2, t));
  return s;
}

template <class T, bool kAmsgrad>
void adam_loop(const OptimizerOptions& o, AdamUpdate& u) {
  const AdamScalars s = scalars(o, u);
  T* __restrict p = u.parameter.data_ptr<T>();
  const T* __restrict g = u.gradient.data_ptr<T>();
  T* __restrict m = u.exp_avg.data_ptr<T>();
  T* __restrict v = u.exp_avg_sq.data_ptr<T>();
  T* __restrict vmax = kAmsgrad ? u.max_exp_avg_sq.data_ptr<T>() : nullptr;
  const T b1 = static_cast<T>(o.beta1), b2 = static_cast<T>(o.beta2);
  const T c1 = static_cast<T>(1 - o.beta1), c2 = static_cast<T>(1 - o.beta2);
  const T eps = static_cast<T>(o.eps), factor = static_cast<T>(u.gradient_factor);
  const T decay = static_cast<T>(s.decay), l2 = static_cast<T>(s.l2);
  const T step_size = static_cast<T>(s.step_size), denom_scale = static_cast<T>(s.denom_scale);
  at::parallel_for(0, u.parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T w = p[i] * decay;
      const T grad = g[i] * factor + l2 * p[i];
      m[i] = b1 * m[i] + c1 * grad;
      v[i] = b2 * v[i] + c2 * grad * grad;
      T second = v[i];
      if constexpr (kAmsgrad) second = vmax[i] = std::max(vmax[i], second);
      p[i] = w - step_size * m[i] / (std::sqrt(second) * denom_scale + eps);
    }
  });
}

void adam_tensors(const OptimizerOptions& o, AdamUpdate& u) {
  const AdamScalars s = scalars(o, u);
  at::Tensor grad = u.gradient_factor == 1 ? u.gradient : u.gradient * u.gradient_factor;
  if (s.l2 != 0) grad = grad.add(u.parameter, s.l2);
  if (s.decay != 1) u.parameter.mul_(s.decay);
  u.exp_avg.mul_(o.beta1).add_(grad, 1 - o.beta1);
  u.exp_avg_sq.mul_(o.beta2).addcmul_(grad, grad, 1 - o.beta2);
  at::Tensor second = u.exp_avg_sq;
  if (o.amsgrad) {
    at::maximum_out(u.max_exp_avg_sq, u.max_exp_avg_sq, u.exp_avg_sq);
    second = u.max_exp_avg_sq;
  }
  u.parameter.addcdiv_(u.exp_avg, second.sqrt().mul_(s.denom_scale).add_(o.eps), -s.step_size);
}

template <class T>
void sgd_loop(const OptimizerOptions& o, SgdUpdate& u) {
  T* __restrict p = u.parameter.data_ptr<T>();
  const T* __restrict g = u.gradient.data_ptr<T>();
  T* __restrict buffer = u.momentum_buffer.defined() ? u.momentum_buffer.data_ptr<T>() : nullptr;
  const T factor = static_cast<T>(u.gradient_factor), lr = static_cast<T>(u.lr);
  const T l2 = static_cast<T>(o.weight_decay), momentum = static_cast<T>(o.momentum);
  const T fresh = static_cast<T>(u.first ? 1.0 : 1.0 - o.dampening);
  at::parallel_for(0, u.parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T grad = g[i] * factor + l2 * p[i];
      if (buffer) {
        buffer[i] = momentum * buffer[i] + fresh * grad;
        grad = o.nesterov ? grad + momentum * buffer[i] : buffer[i];
      }
      p[i] -= lr * grad;
    }
  });
}

void sgd_tensors(const OptimizerOptions& o, SgdUpdate& u) {
  at::Tensor grad = u.gradient_factor == 1 ? u.gradient : u.gradient * u.gradient_factor;
  if (o.weight_decay != 0) grad = grad.add(u.parameter, o.weight_decay);
  if (u.momentum_buffer.defined()) {
    u.momentum_buffer.mul_(o.momentum).add_(grad, u.first ? 1.0 : 1.0 - o.dampening);
    grad = o.nesterov ? grad.add(u.momentum_buffer, o.momentum) : u.momentum_buffer;
  }
  u.parameter.add_(grad, -u.lr);
}

}  // namespace

void apply(const OptimizerOptions& options, AdamUpdate& update) {
  if (!one_pass(update.parameter, update.gradient)) return adam_tensors(options, update);
  if (update.parameter.scalar_type() == at::kDouble)
    options.amsgrad ? adam_loop<double, true>(options, update)
                    : adam_loop<double, false>(options, update);
  else
    options.amsgrad ? adam_loop<float, true>(options, update)
                    : adam_loop<float, false>(options, update);
  update.parameter.unsafeGetTensorImpl()->bump_version();
}

void apply(const OptimizerOptions& options, SgdUpdate& update) {
  if (!one_pass(update.parameter, update.gradient)) return sgd_tensors(options, update);
  if (update.parameter.scalar_type() == at::kDouble)
    sgd_loop<double>(options, update);
  else
    sgd_loop<float>(options, update);
  update.parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace tutti::trainer
