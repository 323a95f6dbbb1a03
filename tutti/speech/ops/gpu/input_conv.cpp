#include "tutti/speech/ops/gpu/input_conv.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <torch/torch.h>

#include "tutti/speech/kernels/input_conv.h"
#include "tutti/speech/ops/gpu/call.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"

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

torch::Tensor plain_float(const torch::Tensor& x) { return x.to(torch::kFloat32).contiguous(); }

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

class CudaFirstConvRelu : public torch::autograd::Function<CudaFirstConvRelu> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& features_BTF, const torch::Tensor& weight_C133,
                               const torch::Tensor& bias_C, std::int64_t stride,
                               std::int64_t out_type) {
    const c10::cuda::CUDAGuard guard(features_BTF.device());
    const torch::Tensor x = plain_float(features_BTF), weight = plain_float(weight_C133),
                        bias = plain_float(bias_C);
    const cuda::InputConvSize size = input_conv_size(x, weight.size(0), stride);
    torch::Tensor y =
        torch::empty({size.batch, size.channels, size.out_frames(), size.out_bins()},
                     x.options().dtype(static_cast<torch::ScalarType>(out_type)), kChannelsLast);
    cuda::input_conv_relu(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                          number_of(y), y.data_ptr(), size, stream_of(x));
    context->save_for_backward({x, weight, y});
    context->saved_data["stride"] = stride;
    context->saved_data["x_type"] = static_cast<std::int64_t>(features_BTF.scalar_type());
    context->saved_data["weight_type"] = static_cast<std::int64_t>(weight_C133.scalar_type());
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &y = saved[2];
    const c10::cuda::CUDAGuard guard(x.device());
    const std::int64_t stride = context->saved_data["stride"].toInt(), channels = weight.size(0);
    const cuda::InputConvSize size = input_conv_size(x, channels, stride);
    const torch::Tensor g = gradient_like(y, gradients[0]);
    torch::Tensor workspace = float_buffer(cuda::input_conv_workspace(size), x),
                  grads = float_buffer(10 * channels, x);
    cuda::input_conv_relu_back(x.data_ptr<float>(), number_of(y), g.data_ptr(), y.data_ptr(),
                               workspace.data_ptr<float>(), grads.data_ptr<float>(), size,
                               stream_of(x));
    const torch::ScalarType type = saved_type(context, "weight_type");
    torch::Tensor grad_x;
    // Features are data: seldom does anybody want their gradient.
    if (context->needs_input_grad(0)) {
      const torch::Tensor passed = torch::where(y <= 0, 0, g.to(torch::kFloat32));
      grad_x =
          std::get<0>(at::convolution_backward(passed, x.unsqueeze(1), weight,
                                               at::OptionalIntArrayRef(), {stride, stride}, {0, 0},
                                               {1, 1}, false, {0, 0}, 1, {true, false, false}))
              .squeeze(1)
              .to(saved_type(context, "x_type"));
    }
    return {grad_x, grads.narrow(0, 0, 9 * channels).view({channels, 1, 3, 3}).to(type),
            grads.narrow(0, 9 * channels, channels).to(type), torch::Tensor(), torch::Tensor()};
  }
};

class CudaConvRelu : public torch::autograd::Function<CudaConvRelu> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x_BCTF, const torch::Tensor& weight_DCKK,
                               const torch::Tensor& bias_D, std::int64_t stride) {
    const c10::cuda::CUDAGuard guard(x_BCTF.device());
    const torch::Tensor x = x_BCTF.contiguous(kChannelsLast), bias = plain_float(bias_D);
    const torch::Tensor weight = weight_DCKK.to(x.scalar_type(), /*non_blocking=*/false,
                                                /*copy=*/false, kChannelsLast);
    torch::Tensor y = at::conv2d(x, weight, {}, {stride, stride}).contiguous(kChannelsLast);
    // Nobody else has seen y yet.
    cuda::bias_relu(number_of(y), y.data_ptr(), bias.data_ptr<float>(), rows_size(y), stream_of(y));
    context->save_for_backward({x, weight, y});
    context->saved_data["stride"] = stride;
    context->saved_data["weight_type"] = static_cast<std::int64_t>(weight_DCKK.scalar_type());
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &y = saved[2];
    const c10::cuda::CUDAGuard guard(x.device());
    const std::int64_t stride = context->saved_data["stride"].toInt();
    const torch::ScalarType type = saved_type(context, "weight_type");
    const torch::Tensor g = gradient_like(y, gradients[0]);
    torch::Tensor passed = torch::empty_like(g, g.options(), kChannelsLast);
    torch::Tensor workspace = float_buffer(cuda::bias_relu_workspace(rows_size(y)), y),
                  grad_bias = float_buffer(y.size(1), y);
    cuda::bias_relu_back(number_of(y), g.data_ptr(), y.data_ptr(), passed.data_ptr(),
                         workspace.data_ptr<float>(), grad_bias.data_ptr<float>(), rows_size(y),
                         stream_of(y));
    auto [grad_x, grad_weight, none] = at::convolution_backward(
        passed, x, weight, at::OptionalIntArrayRef(), {stride, stride}, {0, 0}, {1, 1}, false,
        {0, 0}, 1, {context->needs_input_grad(0), context->needs_input_grad(1), false});
    // As the parameter lies: gradients are summed and sent in that order.
    if (grad_weight.defined())
      grad_weight = grad_weight.to(type, /*non_blocking=*/false, /*copy=*/false,
                                   at::MemoryFormat::Contiguous);
    return {grad_x, grad_weight, grad_bias.to(type), torch::Tensor()};
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

torch::Tensor cuda_first_conv_relu(const torch::Tensor& features_BTF,
                                   const torch::Tensor& weight_C133, const torch::Tensor& bias_C,
                                   std::int64_t stride) {
  return CudaFirstConvRelu::apply(features_BTF, weight_C133, bias_C, stride,
                                  static_cast<std::int64_t>(product_type(features_BTF)));
}

torch::Tensor cuda_conv_relu(const torch::Tensor& x_BCTF, const torch::Tensor& weight_DCKK,
                             const torch::Tensor& bias_D, std::int64_t stride) {
  return CudaConvRelu::apply(x_BCTF, weight_DCKK, bias_D, stride);
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

bool has_cuda_input(const torch::Tensor&, const torch::Tensor&, std::int64_t) { return false; }

torch::Tensor cuda_first_conv_relu(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                                   std::int64_t) {
  throw InternalError("this build has no GPU kernels");
}

torch::Tensor cuda_conv_relu(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                             std::int64_t) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech
#endif
