// depthwise_conv on the CPU: y[b,t,c] = bias[c] + sum_k w[k,c] * x[b, t+k-pad, c].
//
// With channels innermost every step is a multiply-add of whole rows, which the compiler turns into
// vector code; torch's path transposes to (B, C, T) first and has little to vectorise over for
// sequences of a few dozen frames.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>

#include "tutti/core/vector_clones.h"
#include "tutti/speech/models/modules.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"

namespace tutti::speech {

namespace {

constexpr std::int64_t kBlock = 64;  // channels held in registers at a time

// One utterance: y (T, C) from x (T, C) and w (K, C).
TUTTI_VECTOR_CLONES
void convolve_rows(const float* __restrict x, const float* __restrict w,
                   const float* __restrict bias, float* __restrict y, std::int64_t frames,
                   std::int64_t channels, std::int64_t kernel) {
  const std::int64_t pad = (kernel - 1) / 2;
  for (std::int64_t c0 = 0; c0 < channels; c0 += kBlock) {
    const std::int64_t width = std::min(kBlock, channels - c0);
    for (std::int64_t t = 0; t < frames; ++t) {
      float sum[kBlock] = {};
      if (bias != nullptr) std::copy_n(bias + c0, width, sum);
      const std::int64_t first = std::max<std::int64_t>(0, pad - t);
      const std::int64_t last = std::min(kernel, frames + pad - t);
      for (std::int64_t k = first; k < last; ++k) {
        const float* row = x + (t + k - pad) * channels + c0;
        const float* tap = w + k * channels + c0;
        if (width == kBlock) {
          for (std::int64_t c = 0; c < kBlock; ++c) sum[c] += tap[c] * row[c];
        } else {
          for (std::int64_t c = 0; c < width; ++c) sum[c] += tap[c] * row[c];
        }
      }
      std::copy_n(sum, width, y + t * channels + c0);
    }
  }
}

// One tap of the weight gradient over the whole batch: out[c] = sum_{b,t} g[b,t,c] x[b,t+k-pad,c].
TUTTI_VECTOR_CLONES
void correlate_tap(const float* __restrict x, const float* __restrict g, float* __restrict out,
                   std::int64_t batch, std::int64_t frames, std::int64_t channels,
                   std::int64_t shift) {
  std::fill_n(out, channels, 0.0F);
  const std::int64_t first = std::max<std::int64_t>(0, -shift);
  const std::int64_t last = std::min(frames, frames - shift);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = first; t < last; ++t) {
      const float* g_row = g + (b * frames + t) * channels;
      const float* x_row = x + (b * frames + t + shift) * channels;
      for (std::int64_t c = 0; c < channels; ++c) out[c] += g_row[c] * x_row[c];
    }
  }
}

torch::Tensor convolve(const torch::Tensor& x_BTC, const torch::Tensor& weight_KC,
                       const torch::Tensor& bias_C) {
  torch::Tensor y = torch::empty_like(x_BTC);
  const std::int64_t frames = x_BTC.size(1), channels = x_BTC.size(2);
  const float* x = x_BTC.data_ptr<float>();
  const float* w = weight_KC.data_ptr<float>();
  const float* bias = bias_C.defined() ? bias_C.data_ptr<float>() : nullptr;
  float* out = y.data_ptr<float>();
  at::parallel_for(0, x_BTC.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b)
      convolve_rows(x + b * frames * channels, w, bias, out + b * frames * channels, frames,
                    channels, weight_KC.size(0));
  });
  return y;
}

class DepthwiseConv : public torch::autograd::Function<DepthwiseConv> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight_C1K, const torch::Tensor& bias) {
    const torch::Tensor weight_KC = weight_C1K.squeeze(1).t().contiguous();
    const torch::Tensor input = x.contiguous();
    context->save_for_backward({input, weight_KC});
    return convolve(input, weight_KC, bias.contiguous());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight_KC = saved[1];
    const torch::Tensor g = gradients[0].contiguous();
    const std::int64_t kernel = weight_KC.size(0), channels = weight_KC.size(1);
    torch::Tensor grad_x = convolve(g, weight_KC.flip(0).contiguous(), {});
    torch::Tensor grad_w = torch::empty_like(weight_KC);
    float* out = grad_w.data_ptr<float>();
    at::parallel_for(0, kernel, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; ++k)
        correlate_tap(x.data_ptr<float>(), g.data_ptr<float>(), out + k * channels, x.size(0),
                      x.size(1), channels, k - (kernel - 1) / 2);
    });
    return {grad_x, grad_w.t().unsqueeze(1), g.sum(at::IntArrayRef{0, 1})};
  }
};

}  // namespace

torch::Tensor depthwise_conv(const torch::Tensor& x_BTC, const torch::Tensor& weight_C1K,
                             const torch::Tensor& bias_C, bool residual) {
  const std::int64_t kernel = weight_C1K.size(2);
  const bool ours = x_BTC.device().is_cpu() && x_BTC.scalar_type() == torch::kFloat32 &&
                    weight_C1K.scalar_type() == torch::kFloat32 && kernel % 2 == 1;
  if (kernel % 2 == 1 && kernel < 64 && has_cuda_ops(x_BTC))
    return cuda_depthwise_conv(x_BTC, weight_C1K, bias_C, residual);
  const torch::Tensor y = ours ? DepthwiseConv::apply(x_BTC, weight_C1K, bias_C)
                               : torch::conv1d(x_BTC.transpose(1, 2), weight_C1K, bias_C, 1,
                                               (kernel - 1) / 2, 1, weight_C1K.size(0))
                                     .transpose(1, 2);
  return residual ? x_BTC + y : y;
}

}  // namespace tutti::speech
