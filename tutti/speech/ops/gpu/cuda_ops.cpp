#include "tutti/speech/ops/gpu/cuda_ops.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/ops/gpu/call.h"
#include "tutti/speech/ops/gpu/conv.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech {

namespace {

cuda::ConvSize conv_size(const torch::Tensor& x_BTC, const torch::Tensor& weight_C1K) {
  return {.batch = x_BTC.size(0),
          .frames = x_BTC.size(1),
          .channels = x_BTC.size(2),
          .kernel = static_cast<int>(weight_C1K.size(2))};
}

class CudaDepthwiseConv : public torch::autograd::Function<CudaDepthwiseConv> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight_C1K, const torch::Tensor& bias,
                               bool residual, std::int64_t out_type) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(x.device());
    const torch::Tensor input = x.contiguous();
    const torch::Tensor weight = gpu::as_floats(weight_C1K);
    torch::Tensor y = torch::empty(input.sizes(),
                                   input.options().dtype(static_cast<torch::ScalarType>(out_type)));
    depthwise_conv_into(y, input, weight, gpu::as_floats(bias), {.residual = residual});
    context->save_for_backward({input, weight});
    context->saved_data["weight_type"] = static_cast<std::int64_t>(weight_C1K.scalar_type());
    context->saved_data["residual"] = residual;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const PlainArithmetic plain;
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1];
    const c10::cuda::CUDAGuard guard(x.device());
    const torch::Tensor g = gradients[0].contiguous();
    torch::Tensor grad_x = torch::empty_like(x);
    depthwise_conv_into(grad_x, g, weight, {},
                        {.flip = true, .residual = context->saved_data["residual"].toBool()});
    const auto [grad_w, grad_b] = depthwise_conv_gradients(x, g, weight);
    const auto type = static_cast<torch::ScalarType>(context->saved_data["weight_type"].toInt());
    return {grad_x, grad_w.to(type), grad_b.to(type), torch::Tensor(), torch::Tensor()};
  }
};

class CudaRelativeShift : public torch::autograd::Function<CudaRelativeShift> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& scores_HBTN,
                               const std::optional<torch::Tensor>& key_bias) {
    const c10::cuda::CUDAGuard guard(scores_HBTN.device());
    const torch::Tensor scores = scores_HBTN.contiguous();
    cuda::ShiftSize size{.batch = scores.size(1),
                         .heads = scores.size(0),
                         .frames = scores.size(2),
                         .columns = scores.size(3)};
    size.out_row = (size.frames + 7) / 8 * 8;
    torch::Tensor out = torch::empty_strided(
        {size.batch, size.heads, size.frames, size.frames},
        {size.heads * size.frames * size.out_row, size.frames * size.out_row, size.out_row, 1},
        scores.options());
    const torch::Tensor bias =
        key_bias ? key_bias->to(scores.scalar_type()).contiguous() : torch::Tensor();
    cuda::relative_shift(number_of(scores), scores.data_ptr(),
                         bias.defined() ? bias.data_ptr() : nullptr, out.data_ptr(), size,
                         stream_of(scores));
    context->saved_data["columns"] = size.columns;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    torch::Tensor g = gradients[0];
    if (g.stride(3) != 1) g = g.contiguous();
    const c10::cuda::CUDAGuard guard(g.device());
    const cuda::ShiftSize size{.batch = g.size(0),
                               .heads = g.size(1),
                               .frames = g.size(2),
                               .columns = context->saved_data["columns"].toInt()};
    torch::Tensor grad =
        torch::empty({size.heads, size.batch, size.frames, size.columns}, g.options());
    cuda::relative_shift_back(number_of(g), g.data_ptr(), {g.stride(0), g.stride(1), g.stride(2)},
                              grad.data_ptr(), size, stream_of(g));
    return {grad, torch::Tensor()};
  }
};

}  // namespace

void depthwise_conv_into(torch::Tensor& y, const torch::Tensor& x, const torch::Tensor& weight_C1K,
                         const torch::Tensor& bias, cuda::ConvVariant variant) {
  cuda::depthwise_conv(number_of(x), x.data_ptr(), weight_C1K.data_ptr<float>(),
                       bias.defined() ? bias.data_ptr<float>() : nullptr, variant, number_of(y),
                       y.data_ptr(), conv_size(x, weight_C1K), stream_of(x));
}

std::pair<torch::Tensor, torch::Tensor> depthwise_conv_gradients(const torch::Tensor& x,
                                                                 const torch::Tensor& g,
                                                                 const torch::Tensor& weight_C1K) {
  const cuda::ConvSize size = conv_size(x, weight_C1K);
  torch::Tensor grad_w = torch::empty_like(weight_C1K);
  torch::Tensor grad_b = torch::empty({size.channels}, weight_C1K.options());
  torch::Tensor partials =
      torch::empty({cuda::depthwise_conv_partials(size)}, weight_C1K.options());
  cuda::depthwise_conv_weights(number_of(x), x.data_ptr(), number_of(g), g.data_ptr(),
                               grad_w.data_ptr<float>(), grad_b.data_ptr<float>(),
                               partials.data_ptr<float>(), size, stream_of(x));
  return {grad_w, grad_b};
}

bool has_cuda_ops(const torch::Tensor& x) {
  return x.is_cuda() && number_type(x.scalar_type()) &&
         !at::globalContext().deterministicAlgorithms();
}

torch::Tensor cuda_depthwise_conv(const torch::Tensor& x_BTC, const torch::Tensor& weight_C1K,
                                  const torch::Tensor& bias_C, bool residual) {
  return CudaDepthwiseConv::apply(x_BTC, weight_C1K, bias_C, residual,
                                  static_cast<std::int64_t>(product_type(x_BTC)));
}

torch::Tensor cuda_relative_shift(const torch::Tensor& scores_HBTN, const torch::Tensor& key_bias) {
  return CudaRelativeShift::apply(scores_HBTN, given(key_bias));
}

bool can_attend_past(const torch::Tensor& cache_NHCd) {
  return cache_NHCd.is_cuda() && number_type(cache_NHCd.scalar_type()) &&
         cache_NHCd.size(3) % 8 == 0 && cache_NHCd.size(3) <= 256;
}

torch::Tensor cuda_attend_past(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& k_cache,
                               const torch::Tensor& v_cache, const torch::Tensor& ancestors,
                               const torch::Tensor& position) {
  const c10::cuda::CUDAGuard guard(q.device());
  const auto plain = [&](const torch::Tensor& x) {
    return x.to(k_cache.scalar_type()).contiguous();
  };
  const torch::Tensor query = plain(q), key = plain(k), value = plain(v);
  torch::Tensor out = torch::empty_like(query);
  cuda::attend_past(number_of(k_cache), query.data_ptr(), key.data_ptr(), value.data_ptr(),
                    k_cache.data_ptr(), v_cache.data_ptr(), ancestors.data_ptr<std::int32_t>(),
                    position.data_ptr<std::int64_t>(), out.data_ptr(),
                    {.rows = k_cache.size(0),
                     .heads = k_cache.size(1),
                     .capacity = k_cache.size(2),
                     .head_size = k_cache.size(3)},
                    stream_of(q));
  return out;
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

bool has_cuda_ops(const torch::Tensor&) { return false; }

torch::Tensor cuda_depthwise_conv(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                                  bool) {
  throw InternalError("this build has no GPU kernels");
}

torch::Tensor cuda_relative_shift(const torch::Tensor&, const torch::Tensor&) {
  throw InternalError("this build has no GPU kernels");
}

bool can_attend_past(const torch::Tensor&) { return false; }

torch::Tensor cuda_attend_past(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                               const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                               const torch::Tensor&) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech
#endif
