#include "tutti/speech/ops/cpu/first_conv.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>

#include "tutti/core/vector_clones.h"
#include "tutti/speech/models/lengths.h"

namespace tutti::speech {

namespace {

constexpr std::int64_t kTaps = 9;
constexpr std::int64_t kLanes = 32;  // channels held in registers at a time

// Sizes of one utterance; `padded` are the channels of its sums, whole kLanes.
struct FirstConv {
  std::int64_t bins = 0, stride = 1, out_frames = 0, out_bins = 0, channels = 0, padded = 0;
  const float* patch(const float* x, std::int64_t t, std::int64_t f) const {
    return x + t * stride * bins + f * stride;
  }
};

FirstConv sizes_of(const torch::Tensor& features_BTF, std::int64_t channels, std::int64_t stride) {
  FirstConv sizes;
  sizes.bins = features_BTF.size(2);
  sizes.stride = stride;
  sizes.out_frames = conv_length(features_BTF.size(1), 3, static_cast<int>(stride));
  sizes.out_bins = conv_length(sizes.bins, 3, static_cast<int>(stride));
  sizes.channels = channels;
  sizes.padded = (channels + kLanes - 1) / kLanes * kLanes;
  return sizes;
}

// taps: kTaps rows of the weights, then the bias. Written out, or the compiler keeps the sum in
// memory, which takes seven times as long.
TUTTI_VECTOR_CLONES
void first_conv_forward(const FirstConv& s, const float* __restrict x, const float* __restrict taps,
                        float* __restrict y) {
  const std::int64_t n = s.channels;
  for (std::int64_t t = 0; t < s.out_frames; ++t) {
    for (std::int64_t f = 0; f < s.out_bins; ++f, y += n) {
      const float *p = s.patch(x, t, f), *q = p + s.bins, *r = q + s.bins;
      const float p0 = p[0], p1 = p[1], p2 = p[2], q0 = q[0], q1 = q[1], q2 = q[2], r0 = r[0],
                  r1 = r[1], r2 = r[2];
      for (std::int64_t c = 0; c < n; ++c) {
        const float* w = taps + c;
        const float sum = w[9 * n] + p0 * w[0] + p1 * w[n] + p2 * w[2 * n] + q0 * w[3 * n] +
                          q1 * w[4 * n] + q2 * w[5 * n] + r0 * w[6 * n] + r1 * w[7 * n] +
                          r2 * w[8 * n];
        y[c] = sum < 0 ? 0 : sum;  // NaN stays
      }
    }
  }
}

// Adds the gradients of taps and bias to `sums`: kTaps rows, then the bias.
TUTTI_VECTOR_CLONES
void first_conv_backward(const FirstConv& s, const float* __restrict x, const float* __restrict y,
                         const float* __restrict g, float* __restrict sums) {
  for (std::int64_t t = 0; t < s.out_frames; ++t) {
    for (std::int64_t c0 = 0; c0 < s.channels; c0 += kLanes) {
      const std::int64_t width = std::min(kLanes, s.channels - c0);
      float sum[kTaps + 1][kLanes] = {};
      for (std::int64_t f = 0; f < s.out_bins; ++f) {
        const std::int64_t place = (t * s.out_bins + f) * s.channels + c0;
        const float* patch = s.patch(x, t, f);
        float through[kLanes] = {};  // what ReLU lets through of the gradient
        if (width == kLanes) {
          for (std::int64_t c = 0; c < kLanes; ++c)
            through[c] = y[place + c] <= 0 ? 0 : g[place + c];
        } else {
          for (std::int64_t c = 0; c < width; ++c)
            through[c] = y[place + c] <= 0 ? 0 : g[place + c];
        }
        for (std::int64_t k = 0; k < kTaps; ++k) {
          const float value = patch[k / 3 * s.bins + k % 3];
          for (std::int64_t c = 0; c < kLanes; ++c) sum[k][c] += value * through[c];
        }
        for (std::int64_t c = 0; c < kLanes; ++c) sum[kTaps][c] += through[c];
      }
      for (std::int64_t k = 0; k <= kTaps; ++k)
        for (std::int64_t c = 0; c < kLanes; ++c) sums[k * s.padded + c0 + c] += sum[k][c];
    }
  }
}

class FirstConvRelu : public torch::autograd::Function<FirstConvRelu> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight, const torch::Tensor& bias,
                               std::int64_t stride) {
    const torch::Tensor features = x.contiguous();
    const FirstConv s = sizes_of(features, weight.size(0), stride);
    const torch::Tensor taps = torch::cat({weight.flatten(1).t(), bias.unsqueeze(0)});
    const torch::Tensor y =
        torch::empty({features.size(0), s.out_frames, s.out_bins, s.channels}, x.options());
    const float *from = features.data_ptr<float>(), *weights = taps.data_ptr<float>();
    float* to = y.data_ptr<float>();
    at::parallel_for(0, y.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b)
        first_conv_forward(s, from + b * features.stride(0), weights, to + b * y.stride(0));
    });
    const torch::Tensor out = y.permute({0, 3, 1, 2});
    context->save_for_backward({features, out});
    context->saved_data["stride"] = stride;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &features = saved[0], &y = saved[1];
    const torch::Tensor g = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    const FirstConv s = sizes_of(features, y.size(1), context->saved_data["stride"].toInt());
    // One row of sums per utterance: the result does not depend on the number of threads.
    const torch::Tensor sums =
        torch::zeros({features.size(0), kTaps + 1, s.padded}, features.options());
    const float *x = features.data_ptr<float>(), *out = y.data_ptr<float>(),
                *slope = g.data_ptr<float>();
    float* to = sums.data_ptr<float>();
    const std::int64_t image = s.out_frames * s.out_bins * s.channels;
    at::parallel_for(0, features.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b)
        first_conv_backward(s, x + b * features.stride(0), out + b * image, slope + b * image,
                            to + b * sums.stride(0));
    });
    const torch::Tensor total = sums.sum(0).narrow(1, 0, s.channels);
    return {torch::Tensor(), total.narrow(0, 0, kTaps).t().reshape({s.channels, 1, 3, 3}),
            total[kTaps], torch::Tensor()};
  }
};

}  // namespace

bool has_first_conv(const torch::Tensor& features_BTF, const torch::Tensor& weight_C133) {
  return features_BTF.device().is_cpu() && features_BTF.scalar_type() == torch::kFloat32 &&
         weight_C133.scalar_type() == torch::kFloat32 && weight_C133.size(2) == 3 &&
         !(features_BTF.requires_grad() && at::GradMode::is_enabled());
}

torch::Tensor first_conv_relu(const torch::Tensor& features_BTF, const torch::Tensor& weight_C133,
                              const torch::Tensor& bias_C, std::int64_t stride) {
  return FirstConvRelu::apply(features_BTF, weight_C133, bias_C, stride);
}

}  // namespace tutti::speech
