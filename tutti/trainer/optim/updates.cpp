#include "tutti/trainer/optim/updates.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "tutti/trainer/torch_version.h"
#ifdef TUTTI_WITH_CUDA_KERNELS
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "tutti/trainer/cuda/adam.h"
#endif

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

void apply_alone(const OptimizerOptions& options, AdamUpdate& update) {
  if (!one_pass(update.parameter, update.gradient)) return adam_tensors(options, update);
  if (update.parameter.scalar_type() == at::kDouble)
    options.amsgrad ? adam_loop<double, true>(options, update)
                    : adam_loop<double, false>(options, update);
  else
    options.amsgrad ? adam_loop<float, true>(options, update)
                    : adam_loop<float, false>(options, update);
  update.parameter.unsafeGetTensorImpl()->bump_version();
}

#ifdef TUTTI_WITH_CUDA_KERNELS
// False where the kernel does not fit.
bool apply_with_our_kernel(const OptimizerOptions& o, std::vector<AdamUpdate>& updates,
                           const ClippedOnDevice& clipped = {}) {
  const at::Device device = updates[0].parameter.device();
  const auto fits = [&](const at::Tensor& x) {
    return x.scalar_type() == at::kFloat && x.is_contiguous() && x.device() == device;
  };
  std::vector<cuda::AdamTensor> tensors;
  tensors.reserve(updates.size());
  AdamScalars common;  // but for parameters that had fewer updates
  std::int64_t common_step = 0;
  for (AdamUpdate& u : updates) {
    if (!fits(u.parameter) || !fits(u.gradient) || !fits(u.exp_avg) || !fits(u.exp_avg_sq))
      return false;
    if (u.step != common_step) common = scalars(o, u);
    common_step = u.step;
    tensors.push_back({.parameter = u.parameter.data_ptr<float>(),
                       .gradient = u.gradient.data_ptr<float>(),
                       .average = u.exp_avg.data_ptr<float>(),
                       .square = u.exp_avg_sq.data_ptr<float>(),
                       .count = u.parameter.numel(),
                       .step_size = static_cast<float>(common.step_size),
                       .denom_scale = static_cast<float>(common.denom_scale)});
  }
  if (clipped.squared_norm.defined() && !fits(clipped.squared_norm)) return false;
  const c10::cuda::CUDAGuard guard(device);
  cuda::adam(tensors,
             {.beta1 = static_cast<float>(o.beta1),
              .beta2 = static_cast<float>(o.beta2),
              .more1 = static_cast<float>(1 - o.beta1),
              .more2 = static_cast<float>(1 - o.beta2),
              .eps = static_cast<float>(o.eps),
              .decay = static_cast<float>(common.decay),
              .l2 = static_cast<float>(common.l2),
              .factor = static_cast<float>(updates[0].gradient_factor),
              .squared_norm =
                  clipped.squared_norm.defined() ? clipped.squared_norm.data_ptr<float>() : nullptr,
              .average = clipped.average,
              .limit = clipped.limit},
             c10::cuda::getCurrentCUDAStream(device.index()).stream());
  for (AdamUpdate& u : updates) u.parameter.unsafeGetTensorImpl()->bump_version();
  return true;
}
#endif

// False where torch has no such kernel.
bool apply_at_once([[maybe_unused]] const OptimizerOptions& o, std::vector<AdamUpdate>& updates) {
  if (!updates[0].parameter.is_cuda()) return false;
#ifdef TUTTI_WITH_CUDA_KERNELS
  if (!o.amsgrad && apply_with_our_kernel(o, updates)) return true;
#endif
#if TUTTI_TORCH_AT_LEAST(2, 4)
  std::vector<at::Tensor> parameters, gradients, averages, squares, maxima, steps;
  std::map<std::int64_t, at::Tensor> numbers;  // of this update, where the kernel reads it
  for (AdamUpdate& u : updates) {
    at::Tensor& number = numbers[u.step];
    if (!number.defined())
      number = at::full({}, static_cast<double>(u.step), u.parameter.options().dtype(at::kFloat));
    parameters.push_back(u.parameter);
    gradients.push_back(u.gradient);
    averages.push_back(u.exp_avg);
    squares.push_back(u.exp_avg_sq);
    if (o.amsgrad) maxima.push_back(u.max_exp_avg_sq);
    steps.push_back(number);
  }
  // The kernel divides by a scale.
  std::optional<at::Tensor> scale;
  if (updates[0].gradient_factor != 1)  // no pass of its own over the gradients
    scale =
        at::full({}, 1.0 / updates[0].gradient_factor, gradients[0].options().dtype(at::kFloat));
  const double lr = updates[0].lr;
  if (o.kind == OptimizerKind::kAdamW)
    at::_fused_adamw_(parameters, gradients, averages, squares, maxima, steps, lr, o.beta1, o.beta2,
                      o.weight_decay, o.eps, o.amsgrad, /*maximize=*/false, scale);
  else
    at::_fused_adam_(parameters, gradients, averages, squares, maxima, steps, lr, o.beta1, o.beta2,
                     o.weight_decay, o.eps, o.amsgrad, /*maximize=*/false, scale);
  return true;
#else
  return false;
#endif
}

}  // namespace

void apply(const OptimizerOptions& options, std::vector<AdamUpdate>& updates) {
  if (updates.empty() || apply_at_once(options, updates)) return;
  for (AdamUpdate& update : updates) apply_alone(options, update);
}

bool apply_clipped([[maybe_unused]] const OptimizerOptions& options,
                   [[maybe_unused]] std::vector<AdamUpdate>& updates,
                   [[maybe_unused]] const ClippedOnDevice& clipped) {
#ifdef TUTTI_WITH_CUDA_KERNELS
  return !updates.empty() && updates[0].parameter.is_cuda() && !options.amsgrad &&
         apply_with_our_kernel(options, updates, clipped);
#else
  return false;
#endif
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
