#include "tutti/speech/frontend/spec_augment.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/kernels/spec_augment.h"
#include "tutti/speech/ops/gpu/call.h"
#endif

namespace tutti::speech {

namespace {

// Integers in [low, high) where the bounds are tensors; floor of a uniform number.
torch::Tensor random_integers(const torch::Tensor& low, const torch::Tensor& high) {
  const auto span = (high - low).to(torch::kFloat64);
  const auto draw = (torch::rand_like(span) * span).floor().to(torch::kInt64);
  return low + torch::minimum(draw, (high - low - 1).clamp_min(0));
}

// Bicubic convolution weights of torch's interpolate (a = -0.75) for taps at -1, 0, 1, 2.
torch::Tensor cubic_weight(const torch::Tensor& distance) {
  constexpr double kA = -0.75;
  const auto d = distance.abs();
  const auto near = ((kA + 2) * d - (kA + 3)) * d * d + 1;
  const auto far = ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA;
  return torch::where(d <= 1, near, torch::where(d < 2, far, torch::zeros_like(d)));
}

// Stripes of each utterance: where they begin and how wide they are, (B, count) int64.
struct StripePlan {
  torch::Tensor starts, widths;
};

StripePlan draw_stripes(std::int64_t batch, std::int64_t size, std::int64_t min_width,
                        std::int64_t max_width, int count) {
  const auto width = torch::randint(min_width, max_width, {batch, count}, torch::kInt64);
  // The widest stripe of the batch bounds all positions, as in ESPnet.
  const auto room = (size - width.max()).clamp_min(1).expand(width.sizes());
  return {random_integers(torch::zeros_like(width), room), width};
}

// What is random about one batch. Drawn on the host, which knows the lengths: a GPU would start a
// hundred kernels for some dozen numbers, and both get the same ones.
struct Plan {
  torch::Tensor lengths, centers, warped;  // (B), or undefined: no warp
  StripePlan across_bins, across_time;     // undefined: none
};

Plan draw_plan(const Features& features, const SpecAugmentSettings& settings) {
  const std::int64_t batch = features.values.size(0), frames = features.values.size(1);
  Plan plan;
  if (settings.apply_time_warp) {
    const std::int64_t window = settings.time_warp_window;
    const auto length = to_device(features.lengths, torch::kCPU);
    const auto center = random_integers(torch::full_like(length, window), length - window);
    plan.warped = random_integers(center - window, center + window) + 1;
    plan.centers =
        torch::where(length - window <= window, torch::zeros_like(center), center);  // too short
    plan.lengths = length;
  }
  if (settings.apply_freq_mask)
    plan.across_bins =
        draw_stripes(batch, features.values.size(2), settings.freq_mask_width_range.first,
                     settings.freq_mask_width_range.second, settings.num_freq_mask);
  if (!settings.apply_time_mask) return plan;
  std::int64_t low = 0, high = 0;
  if (settings.time_mask_width_range) {
    low = settings.time_mask_width_range->first;
    high = settings.time_mask_width_range->second;
  } else if (settings.time_mask_width_ratio_range) {
    const auto [least, most] = *settings.time_mask_width_ratio_range;
    const auto total = static_cast<double>(frames);
    low = std::max<std::int64_t>(0, std::llround(std::floor(total * least)));
    high = std::min(frames, static_cast<std::int64_t>(std::floor(total * most)));
  }
  if (high > low) plan.across_time = draw_stripes(batch, frames, low, high, settings.num_time_mask);
  return plan;
}

// All numbers of the plan to a device in one piece.
Plan plan_on(torch::Device device, const Plan& plan) {
  if (device.is_cpu()) return plan;
  const torch::Tensor* from[] = {&plan.lengths,
                                 &plan.centers,
                                 &plan.warped,
                                 &plan.across_bins.starts,
                                 &plan.across_bins.widths,
                                 &plan.across_time.starts,
                                 &plan.across_time.widths};
  Plan moved;
  torch::Tensor* to[] = {&moved.lengths,
                         &moved.centers,
                         &moved.warped,
                         &moved.across_bins.starts,
                         &moved.across_bins.widths,
                         &moved.across_time.starts,
                         &moved.across_time.widths};
  std::vector<torch::Tensor> pieces;
  for (const torch::Tensor* piece : from)
    if (piece->defined()) pieces.push_back(piece->flatten());
  if (pieces.empty()) return moved;
  const torch::Tensor all = torch::cat(pieces).to(device, /*non_blocking=*/true);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < std::size(from); ++i) {
    if (!from[i]->defined()) continue;
    *to[i] = all.narrow(0, at, from[i]->numel()).view(from[i]->sizes());
    at += from[i]->numel();
  }
  return moved;
}

// Hides stripes along `axis` (1: time, 2: frequency).
torch::Tensor hide(const torch::Tensor& x, int axis, const StripePlan& stripes, bool with_zero) {
  if (!stripes.starts.defined()) return x;
  const std::int64_t size = x.size(axis);
  const auto start = stripes.starts.unsqueeze(2), width = stripes.widths.unsqueeze(2);
  const auto steps = torch::arange(size, start.options()).view({1, 1, size});
  const auto mask =
      ((start <= steps) & (steps < start + width)).any(1).unsqueeze(axis == 1 ? 2 : 1);
  if (with_zero) return x.masked_fill(mask, 0.0);
  return torch::where(mask, x.mean(), x);
}

#ifdef TUTTI_WITH_CUDA_KERNELS
torch::Tensor augmented_on_gpu(const torch::Tensor& x, const Plan& plan) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto numbers = [](const torch::Tensor& t) {
    return t.defined() ? t.data_ptr<std::int64_t>() : nullptr;
  };
  const auto stripes = [&](const StripePlan& given) -> cuda::Stripes {
    return {numbers(given.starts), numbers(given.widths),
            given.starts.defined() ? static_cast<int>(given.starts.size(1)) : 0};
  };
  const torch::Tensor input = x.contiguous();
  torch::Tensor y = torch::empty_like(input);
  cuda::spec_augment({.batch = x.size(0),
                      .frames = x.size(1),
                      .bins = x.size(2),
                      .lengths = numbers(plan.lengths),
                      .centers = numbers(plan.centers),
                      .warped = numbers(plan.warped),
                      .across_time = stripes(plan.across_time),
                      .across_bins = stripes(plan.across_bins)},
                     input.data_ptr<float>(), y.data_ptr<float>(), stream_of(input));
  return y;
}
#endif

}  // namespace

torch::Tensor time_warp(const torch::Tensor& x_BTF, const torch::Tensor& lengths_B,
                        const torch::Tensor& center_B, const torch::Tensor& warped_B) {
  const std::int64_t frames = x_BTF.size(1);
  const auto column = [](const torch::Tensor& t) { return t.view({-1, 1}); };
  const auto length = column(lengths_B), center = column(center_B), warped = column(warped_B);
  const auto t = torch::arange(frames, lengths_B.options()).unsqueeze(0);
  const auto left = t < warped;
  // Each output frame belongs to the left or the right piece; both are stretched on their own.
  const auto begin_out = torch::where(left, torch::zeros_like(warped), warped);
  const auto begin_in = torch::where(left, torch::zeros_like(center), center);
  const auto end_in = torch::where(left, center, length);
  const auto size_out = torch::where(left, warped, length - warped);
  // float32, as torch's interpolate computes it.
  const auto scale =
      (end_in - begin_in).to(torch::kFloat32) / size_out.clamp_min(1).to(torch::kFloat32);
  const auto source = scale * ((t - begin_out).to(torch::kFloat32) + 0.5) - 0.5;
  const auto base = source.floor();
  const auto fraction = source - base;
  torch::Tensor out = torch::zeros_like(x_BTF);
  for (int tap = -1; tap <= 2; ++tap) {
    const auto position =
        torch::minimum((base.to(torch::kInt64) + tap).clamp_min(0), end_in - begin_in - 1);
    const auto index = (begin_in + position).clamp(0, frames - 1);
    const auto weight = cubic_weight(fraction - tap).to(x_BTF.scalar_type());
    out += x_BTF.gather(1, index.unsqueeze(2).expand(x_BTF.sizes())) * weight.unsqueeze(2);
  }
  const auto keep = (center == 0) | (t >= length);
  return torch::where(keep.unsqueeze(2), x_BTF, out);
}

Features spec_augment(const Features& features, const SpecAugmentSettings& settings) {
  torch::NoGradGuard no_grad;
  Features result = features;
  torch::Tensor& x = result.values;
  const Plan plan = plan_on(x.device(), draw_plan(features, settings));
#ifdef TUTTI_WITH_CUDA_KERNELS
  if (x.is_cuda() && x.scalar_type() == torch::kFloat32 && settings.replace_with_zero) {
    x = augmented_on_gpu(x, plan);
    return result;
  }
#endif
  if (plan.lengths.defined()) x = time_warp(x, plan.lengths, plan.centers, plan.warped);
  x = hide(x, 2, plan.across_bins, settings.replace_with_zero);
  x = hide(x, 1, plan.across_time, settings.replace_with_zero);
  return result;
}

}  // namespace tutti::speech
