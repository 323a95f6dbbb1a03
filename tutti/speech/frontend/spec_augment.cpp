#include "tutti/speech/frontend/spec_augment.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace tutti::speech {

namespace {

// Integers in [low, high) where the bounds are tensors on the device; floor of a uniform number.
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

// Masks `count` stripes per utterance along `axis` (1: time, 2: frequency).
torch::Tensor mask_stripes(const torch::Tensor& x, int axis, std::int64_t min_width,
                           std::int64_t max_width, int count, bool with_zero) {
  const std::int64_t size = x.size(axis);
  const auto options = torch::TensorOptions(torch::kInt64).device(x.device());
  const auto width = torch::randint(min_width, max_width, {x.size(0), count, 1}, options);
  // The widest stripe of the batch bounds all positions, as in ESPnet; it stays on the device.
  const auto room = (size - width.max()).clamp_min(1).expand(width.sizes());
  const auto start = random_integers(torch::zeros_like(width), room);
  const auto steps = torch::arange(size, options).view({1, 1, size});
  auto mask = ((start <= steps) & (steps < start + width)).any(1);
  mask = mask.unsqueeze(axis == 1 ? 2 : 1);
  if (with_zero) return x.masked_fill(mask, 0.0);
  return torch::where(mask, x.mean(), x);
}

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
  if (settings.apply_time_warp) {
    const std::int64_t window = settings.time_warp_window;
    const auto length = to_device(features.lengths, x.device());
    const auto low = torch::full_like(length, window);
    auto center = random_integers(low, length - window);
    const auto warped = random_integers(center - window, center + window) + 1;
    center =
        torch::where(length - window <= window, torch::zeros_like(center), center);  // too short
    x = time_warp(x, length, center, warped);
  }
  if (settings.apply_freq_mask)
    x = mask_stripes(x, 2, settings.freq_mask_width_range.first,
                     settings.freq_mask_width_range.second, settings.num_freq_mask,
                     settings.replace_with_zero);
  if (settings.apply_time_mask) {
    std::int64_t low = 0, high = 0;
    if (settings.time_mask_width_range) {
      low = settings.time_mask_width_range->first;
      high = settings.time_mask_width_range->second;
    } else if (settings.time_mask_width_ratio_range) {
      const auto frames = static_cast<double>(x.size(1));
      low = std::max<std::int64_t>(
          0, std::llround(std::floor(frames * settings.time_mask_width_ratio_range->first)));
      high = std::min(x.size(1), static_cast<std::int64_t>(std::floor(
                                     frames * settings.time_mask_width_ratio_range->second)));
    }
    if (high > low)
      x = mask_stripes(x, 1, low, high, settings.num_time_mask, settings.replace_with_zero);
  }
  return result;
}

}  // namespace tutti::speech
