#include "tutti/speech/models/modules.h"

#include <torch/torch.h>

#include <cmath>

#include "tutti/core/error.h"
#include "tutti/speech/ops/fused.h"

namespace tutti::speech {

namespace {

// torch's default for linear layers and convolutions: U(-1/sqrt(fan_in), 1/sqrt(fan_in)).
void initialise_uniform(const Build& build, torch::Tensor& tensor, std::int64_t fan_in) {
  if (!build.initialise || build.device.is_meta() || !tensor.defined()) return;
  torch::NoGradGuard no_grad;
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  tensor.uniform_(-bound, bound);
}

void fill(const Build& build, torch::Tensor& tensor, double value) {
  if (!build.initialise || build.device.is_meta()) return;
  torch::NoGradGuard no_grad;
  tensor.fill_(value);
}

}  // namespace

torch::Tensor Build::tensor(at::IntArrayRef shape) const {
  return torch::empty(shape, torch::TensorOptions(torch::kFloat32).device(device));
}

LinearImpl::LinearImpl(Build build, std::int64_t in, std::int64_t out, bool with_bias) {
  weight = register_parameter("weight", build.tensor({out, in}));
  if (with_bias) bias = register_parameter("bias", build.tensor({out}));
  initialise_uniform(build, weight, in);
  initialise_uniform(build, bias, in);
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) { return product(x, weight, bias); }

LayerNormImpl::LayerNormImpl(Build build, std::int64_t size, double eps) : eps_(eps) {
  weight = register_parameter("weight", build.tensor({size}));
  bias = register_parameter("bias", build.tensor({size}));
  fill(build, weight, 1);
  fill(build, bias, 0);
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& x) {
  // CPU autocast leaves layer_norm in bf16, CUDA autocast does not: be explicit.
  const torch::Tensor input =
      x.scalar_type() == weight.scalar_type() ? x : x.to(weight.scalar_type());
  return torch::layer_norm(input, {weight.size(0)}, weight, bias, eps_);
}

Conv1dImpl::Conv1dImpl(Build build, ConvShape shape) : shape_(shape) {
  weight = register_parameter("weight",
                              build.tensor({shape.out, shape.in / shape.groups, shape.kernel}));
  bias = register_parameter("bias", build.tensor({shape.out}));
  const std::int64_t fan_in = shape.in / shape.groups * shape.kernel;
  initialise_uniform(build, weight, fan_in);
  initialise_uniform(build, bias, fan_in);
}

torch::Tensor Conv1dImpl::forward(const torch::Tensor& x_BCT) {
  return torch::conv1d(x_BCT, weight, bias, shape_.stride, shape_.padding, 1, shape_.groups);
}

torch::Tensor Conv1dImpl::taps() const {
  return shape_.causal ? torch::constant_pad_nd(weight, {0, shape_.kernel - 1}) : weight;
}

Conv2dImpl::Conv2dImpl(Build build, ConvShape shape) : shape_(shape) {
  weight = register_parameter(
      "weight", build.tensor({shape.out, shape.in / shape.groups, shape.kernel, shape.kernel}));
  bias = register_parameter("bias", build.tensor({shape.out}));
  const std::int64_t fan_in = shape.in / shape.groups * shape.kernel * shape.kernel;
  initialise_uniform(build, weight, fan_in);
  initialise_uniform(build, bias, fan_in);
}

torch::Tensor Conv2dImpl::forward(const torch::Tensor& x_BCTF) {
  return torch::conv2d(x_BCTF, weight, bias, shape_.stride, shape_.padding, 1, shape_.groups);
}

EmbeddingImpl::EmbeddingImpl(Build build, std::int64_t count, std::int64_t size,
                             std::int64_t padding_id)
    : padding_id_(padding_id) {
  weight = register_parameter("weight", build.tensor({count, size}));
  if (!build.initialise || build.device.is_meta()) return;
  torch::NoGradGuard no_grad;
  weight.normal_();
  if (padding_id_ >= 0) weight[padding_id_].zero_();
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& ids) {
  return torch::embedding(weight, ids, padding_id_);
}

torch::Tensor activate(const torch::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return torch::relu(x);
    case Activation::kSwish:
      return torch::silu(x);
    case Activation::kTanh:
      return torch::tanh(x);
    case Activation::kHardtanh:
      return torch::hardtanh(x);
    case Activation::kSelu:
      return torch::selu(x);
    case Activation::kIdentity:
      return x;
  }
  throw InternalError("activate: unknown activation");
}

FeedForwardImpl::FeedForwardImpl(Build build, std::int64_t size, std::int64_t hidden,
                                 double dropout_rate, Activation activation)
    : dropout_rate_(dropout_rate), activation_(activation) {
  w_1_ = register_module("w_1", Linear(build, size, hidden));
  w_2_ = register_module("w_2", Linear(build, hidden, size));
}

torch::Tensor FeedForwardImpl::forward(const torch::Tensor& x) {
  return feed_forward(x, w_1_, w_2_, activation_, is_training() ? dropout_rate_ : 0.0);
}

}  // namespace tutti::speech
