#include "tutti/speech/ops/gpu/input_conv.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <torch/torch.h>

#include "tutti/speech/kernels/input_conv.h"
#include "tutti/speech/ops/gpu/call.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech {

namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

cuda::InputConvSize input_conv_size(const torch::Tensor& x_BTF, std::int64_t channels,
                                    std::int64_t stride) {
  return {.batch = x_BTF.size(0),
          .frames = x_BTF.size(1),
          .bins = x_BTF.size(2),
          .channels = channels,
          .stride = static_cast<int>(stride)};
}

// (B, C, T, F) with channels last is B*T*F rows of C numbers.
cuda::RowsSize rows_size(const torch::Tensor& x_BCTF) {
  return {.rows = x_BCTF.size(0) * x_BCTF.size(2) * x_BCTF.size(3), .channels = x_BCTF.size(1)};
}

torch::Tensor float_buffer(std::int64_t size, const torch::Tensor& like) {
  return torch::empty({size}, like.options().dtype(torch::kFloat32));
}

// In the type and the memory format that the kernels read y in.
torch::Tensor gradient_like(const torch::Tensor& y, const torch::Tensor& gradient) {
  return gradient.to(y.scalar_type()).contiguous(kChannelsLast);
}

torch::ScalarType saved_type(torch::autograd::AutogradContext* context, const char* key) {
  return static_cast<torch::ScalarType>(context->saved_data[key].toInt());
}

// One convolution, as its kernels read it.
struct Conv {
  torch::Tensor weight, bias;
  std::int64_t stride = 1;
};
struct ConvGradients {
  torch::Tensor x, weight, bias;  // those that are wanted
};

torch::Tensor first_conv_relu(const torch::Tensor& x_BTF, const Conv& conv,
                              torch::ScalarType out_type) {
  const cuda::InputConvSize size = input_conv_size(x_BTF, conv.weight.size(0), conv.stride);
  torch::Tensor y = torch::empty({size.batch, size.channels, size.out_frames(), size.out_bins()},
                                 x_BTF.options().dtype(out_type), kChannelsLast);
  cuda::input_conv_relu(x_BTF.data_ptr<float>(), conv.weight.data_ptr<float>(),
                        conv.bias.data_ptr<float>(), number_of(y), y.data_ptr(), size,
                        stream_of(x_BTF));
  return y;
}

ConvGradients first_conv_relu_back(const torch::Tensor& x_BTF, const Conv& conv,
                                   const torch::Tensor& y, const torch::Tensor& gradient,
                                   bool want_x) {
  const std::int64_t channels = conv.weight.size(0);
  const cuda::InputConvSize size = input_conv_size(x_BTF, channels, conv.stride);
  const torch::Tensor g = gradient_like(y, gradient);
  torch::Tensor workspace = float_buffer(cuda::input_conv_workspace(size), x_BTF),
                grads = float_buffer(10 * channels, x_BTF);
  cuda::input_conv_relu_back(x_BTF.data_ptr<float>(), number_of(y), g.data_ptr(), y.data_ptr(),
                             workspace.data_ptr<float>(), grads.data_ptr<float>(), size,
                             stream_of(x_BTF));
  ConvGradients out{{},
                    grads.narrow(0, 0, 9 * channels).view({channels, 1, 3, 3}),
                    grads.narrow(0, 9 * channels, channels)};
  if (want_x) {  // seldom: features are data
    const torch::Tensor passed = torch::where(y <= 0, 0, g.to(torch::kFloat32));
    out.x = std::get<0>(at::convolution_backward(passed, x_BTF.unsqueeze(1), conv.weight,
                                                 at::OptionalIntArrayRef(),
                                                 {conv.stride, conv.stride}, {0, 0}, {1, 1}, false,
                                                 {0, 0}, 1, {true, false, false}))
                .squeeze(1);
  }
  return out;
}

torch::Tensor conv_relu(const torch::Tensor& x, const Conv& conv) {
  torch::Tensor y =
      at::conv2d(x, conv.weight, {}, {conv.stride, conv.stride}).contiguous(kChannelsLast);
  // Nobody else has seen y yet.
  cuda::bias_relu(number_of(y), y.data_ptr(), conv.bias.data_ptr<float>(), rows_size(y),
                  stream_of(y));
  return y;
}

ConvGradients conv_relu_back(const torch::Tensor& x, const Conv& conv, const torch::Tensor& y,
                             const torch::Tensor& gradient, bool want_x, bool want_weight) {
  const torch::Tensor g = gradient_like(y, gradient);
  torch::Tensor passed = torch::empty_like(g, g.options(), kChannelsLast);
  torch::Tensor workspace = float_buffer(cuda::bias_relu_workspace(rows_size(y)), y),
                grad_bias = float_buffer(y.size(1), y);
  cuda::bias_relu_back(number_of(y), g.data_ptr(), y.data_ptr(), passed.data_ptr(),
                       workspace.data_ptr<float>(), grad_bias.data_ptr<float>(), rows_size(y),
                       stream_of(y));
  auto [grad_x, grad_weight, none] = at::convolution_backward(
      passed, x, conv.weight, at::OptionalIntArrayRef(), {conv.stride, conv.stride}, {0, 0}, {1, 1},
      false, {0, 0}, 1, {want_x, want_weight, false});
  return {grad_x, grad_weight, grad_bias};
}

// Of the type and, as gradients are summed and sent in that order, of the layout of the parameter.
torch::Tensor like_parameter(const torch::Tensor& gradient, torch::ScalarType type) {
  return gradient.defined() ? gradient.to(type, /*non_blocking=*/false, /*copy=*/false,
                                          at::MemoryFormat::Contiguous)
                            : gradient;
}

torch::Tensor channels_last(const torch::Tensor& weight, torch::ScalarType type) {
  return weight.to(type, /*non_blocking=*/false, /*copy=*/false, kChannelsLast);
}

class CudaFirstConvsRelu : public torch::autograd::Function<CudaFirstConvsRelu> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& features_BTF, const torch::Tensor& weight_C133,
                               const torch::Tensor& bias_C, const torch::Tensor& weight_DCKK,
                               const torch::Tensor& bias_D,
                               const std::vector<std::int64_t>& strides, std::int64_t out_type) {
    const c10::cuda::CUDAGuard guard(features_BTF.device());
    const auto type = static_cast<torch::ScalarType>(out_type);
    const torch::Tensor x = features_BTF.to(torch::kFloat32).contiguous();
    const Conv first{gpu::as_floats(weight_C133), gpu::as_floats(bias_C), strides[0]},
        second{channels_last(weight_DCKK, type), gpu::as_floats(bias_D), strides[1]};
    const torch::Tensor y = conv_relu(first_conv_relu(x, first, type), second);
    context->save_for_backward({x, first.weight, first.bias, second.weight, y});
    context->saved_data["strides"] = strides;
    context->saved_data["x_type"] = static_cast<std::int64_t>(features_BTF.scalar_type());
    context->saved_data["weight_type"] = static_cast<std::int64_t>(weight_C133.scalar_type());
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &y = saved[4];
    const c10::cuda::CUDAGuard guard(x.device());
    const std::vector<std::int64_t> strides = context->saved_data["strides"].toIntVector();
    const Conv first{saved[1], saved[2], strides[0]}, second{saved[3], {}, strides[1]};
    const torch::ScalarType type = saved_type(context, "weight_type");
    const torch::Tensor between = first_conv_relu(x, first, y.scalar_type());
    const ConvGradients of_second = conv_relu_back(between, second, y, gradients[0],
                                                   /*want_x=*/true, context->needs_input_grad(3));
    const ConvGradients of_first =
        first_conv_relu_back(x, first, between, of_second.x, context->needs_input_grad(0));
    return {of_first.x.defined() ? of_first.x.to(saved_type(context, "x_type")) : of_first.x,
            like_parameter(of_first.weight, type),
            like_parameter(of_first.bias, type),
            like_parameter(of_second.weight, type),
            like_parameter(of_second.bias, type),
            torch::Tensor(),
            torch::Tensor()};
  }
};

class CudaConvRelu : public torch::autograd::Function<CudaConvRelu> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x_BCTF, const torch::Tensor& weight_DCKK,
                               const torch::Tensor& bias_D, std::int64_t stride) {
    const c10::cuda::CUDAGuard guard(x_BCTF.device());
    const torch::Tensor x = x_BCTF.contiguous(kChannelsLast);
    const Conv conv{channels_last(weight_DCKK, x.scalar_type()), gpu::as_floats(bias_D), stride};
    const torch::Tensor y = conv_relu(x, conv);
    context->save_for_backward({x, conv.weight, y});
    context->saved_data["stride"] = stride;
    context->saved_data["weight_type"] = static_cast<std::int64_t>(weight_DCKK.scalar_type());
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const c10::cuda::CUDAGuard guard(saved[0].device());
    const torch::ScalarType type = saved_type(context, "weight_type");
    const ConvGradients grads =
        conv_relu_back(saved[0], {saved[1], {}, context->saved_data["stride"].toInt()}, saved[2],
                       gradients[0], context->needs_input_grad(0), context->needs_input_grad(1));
    return {grads.x, like_parameter(grads.weight, type), like_parameter(grads.bias, type),
            torch::Tensor()};
  }
};

}  // namespace

bool has_cuda_input(const torch::Tensor& features_BTF, const torch::Tensor& weight_C1KK,
                    std::int64_t stride) {
  return has_cuda_ops(features_BTF) && features_BTF.dim() == 3 && features_BTF.size(0) > 0 &&
         weight_C1KK.size(1) == 1 && weight_C1KK.size(2) == 3 && weight_C1KK.size(3) == 3 &&
         stride <= cuda::kMaxInputStride && features_BTF.size(1) >= 3 &&
         features_BTF.size(2) >= 3 && features_BTF.size(2) <= cuda::kMaxInputBins;
}

torch::Tensor cuda_first_convs_relu(const torch::Tensor& features_BTF, const InputConv& first,
                                    const InputConv& second) {
  return CudaFirstConvsRelu::apply(features_BTF, first.weight, first.bias, second.weight,
                                   second.bias,
                                   std::vector<std::int64_t>{first.stride, second.stride},
                                   static_cast<std::int64_t>(product_type(features_BTF)));
}

torch::Tensor cuda_conv_relu(const torch::Tensor& x_BCTF, const InputConv& conv) {
  return CudaConvRelu::apply(x_BCTF, conv.weight, conv.bias, conv.stride);
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

bool has_cuda_input(const torch::Tensor&, const torch::Tensor&, std::int64_t) { return false; }

torch::Tensor cuda_first_convs_relu(const torch::Tensor&, const InputConv&, const InputConv&) {
  throw InternalError("this build has no GPU kernels");
}

torch::Tensor cuda_conv_relu(const torch::Tensor&, const InputConv&) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech
#endif
