#include "tutti/speech/frontend/log_mel.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::speech {

namespace {

// Slaney's scale: linear below 1 kHz, logarithmic above.
double hz_to_mel(double hz, bool htk) {
  if (htk) return 2595.0 * std::log10(1.0 + hz / 700.0);
  constexpr double kLinear = 200.0 / 3, kKnee = 1000.0;
  const double step = std::log(6.4) / 27.0;
  return hz < kKnee ? hz / kLinear : kKnee / kLinear + std::log(hz / kKnee) / step;
}

double mel_to_hz(double mel, bool htk) {
  if (htk) return 700.0 * (std::pow(10.0, mel / 2595.0) - 1.0);
  constexpr double kLinear = 200.0 / 3, kKnee = 1000.0;
  const double step = std::log(6.4) / 27.0;
  const double knee_mel = kKnee / kLinear;
  return mel < knee_mel ? mel * kLinear : kKnee * std::exp(step * (mel - knee_mel));
}

torch::Tensor make_window(const LogMelSettings& settings, const torch::TensorOptions& options) {
  const int length = settings.win_length.value_or(settings.n_fft);
  if (settings.window == "hann") return torch::hann_window(length, options);
  if (settings.window == "hamming") return torch::hamming_window(length, options);
  if (settings.window == "blackman") return torch::blackman_window(length, options);
  if (settings.window == "bartlett") return torch::bartlett_window(length, options);
  throw ConfigError("frontend_conf.window: got '" + settings.window +
                    "', expected one of hann, hamming, blackman, bartlett");
}

// x (B, N) with `margin` samples added on both sides, mirrored at the first and the last sample of
// each utterance; beyond that zeros.
torch::Tensor mirror_ends(const torch::Tensor& x_BN, const Lengths& lengths, std::int64_t margin) {
  const std::int64_t batch = x_BN.size(0), samples = x_BN.size(1);
  torch::Tensor out = torch::zeros({batch, samples + 2 * margin}, x_BN.options());
  out.narrow(1, margin, samples).copy_(x_BN);
  out.narrow(1, 0, margin).copy_(x_BN.narrow(1, 1, margin).flip(1));
  const auto ends = to_device(lengths, x_BN.device()).unsqueeze(1);
  const auto offset = torch::arange(margin, ends.options()).unsqueeze(0);
  // Sample N+k is sample N-2-k.
  out.scatter_(1, ends + offset + margin, x_BN.gather(1, ends - 2 - offset));
  return out;
}

}  // namespace

torch::Tensor mel_filters(const LogMelSettings& settings) {
  const std::int64_t bins = settings.n_fft / 2 + 1, mels = settings.n_mels;
  const double low = hz_to_mel(settings.fmin.value_or(0.0), settings.htk);
  const double high = hz_to_mel(settings.fmax.value_or(settings.fs / 2.0), settings.htk);
  std::vector<double> corner(mels + 2);
  for (std::int64_t m = 0; m < mels + 2; ++m)
    corner[m] = mel_to_hz(
        low + (high - low) * static_cast<double>(m) / static_cast<double>(mels + 1), settings.htk);
  torch::Tensor filters = torch::zeros({bins, mels}, torch::kFloat32);
  auto value = filters.accessor<float, 2>();
  for (std::int64_t m = 0; m < mels; ++m) {
    const double area = 2.0 / (corner[m + 2] - corner[m]);
    for (std::int64_t k = 0; k < bins; ++k) {
      const double hz = static_cast<double>(k) * settings.fs / settings.n_fft;
      const double rising = (hz - corner[m]) / (corner[m + 1] - corner[m]);
      const double falling = (corner[m + 2] - hz) / (corner[m + 2] - corner[m + 1]);
      // Rounded before the area is applied, as librosa does.
      const auto height = static_cast<float>(std::max(0.0, std::min(rising, falling)));
      value[k][m] = static_cast<float>(height * area);
    }
  }
  return filters;
}

LogMelImpl::LogMelImpl(Build build, LogMelSettings settings) : settings_(std::move(settings)) {
  if (settings_.win_length.value_or(1) > settings_.n_fft)
    throw ConfigError("frontend_conf.win_length: got " + std::to_string(*settings_.win_length) +
                      ", expected at most n_fft = " + std::to_string(settings_.n_fft));
  make_window(settings_, torch::kFloat32);  // an unknown name fails here, not in the first batch
  auto logmel = register_module("logmel", std::make_shared<torch::nn::Module>());
  melmat_ = logmel->register_buffer("melmat", mel_filters(settings_).to(build.device));
}

std::int64_t LogMelImpl::num_frames(std::int64_t num_samples) const {
  const std::int64_t padded = num_samples + (settings_.center ? 2 * (settings_.n_fft / 2) : 0);
  return padded < settings_.n_fft ? 0 : (padded - settings_.n_fft) / settings_.hop_length + 1;
}

Features LogMelImpl::forward(const torch::Tensor& speech, const Lengths& num_samples) {
  torch::NoGradGuard no_grad;  // nothing here is learned
  // Log-energies span more decades than bf16 can tell apart.
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::NoTF32Guard no_tf32;
  torch::Tensor x = speech;
  if (x.dim() == 3) {
    const std::int64_t channel =
        is_training() ? torch::randint(x.size(2), {1}).item<std::int64_t>() : 0;
    x = x.select(2, channel);
  }
  x = x.to(torch::kFloat32);
  if (x.size(1) > max_length(num_samples)) x = x.narrow(1, 0, max_length(num_samples));

  Features features;
  const std::int64_t margin = settings_.n_fft / 2;
  for (std::size_t b = 0; b < num_samples.size(); ++b) {
    const std::int64_t needed = settings_.center ? margin + 1 : settings_.n_fft;
    if (num_samples[b] < needed)
      throw DataError("utterance " + std::to_string(b) + " of the batch has " +
                          std::to_string(num_samples[b]) + " samples, an FFT of " +
                          std::to_string(settings_.n_fft) + " needs at least " +
                          std::to_string(needed),
                      "leave out utterances this short");
    features.lengths.push_back(num_frames(num_samples[b]));
  }
  if (!window_.defined() || window_.device() != x.device())
    window_ = make_window(settings_, x.options());
  features.values = fused_.run({.speech_BN = x,
                                .num_samples = num_samples,
                                .frames = max_length(features.lengths),
                                .fft_size = settings_.n_fft,
                                .hop = settings_.hop_length,
                                .margin = settings_.center ? margin : 0,
                                .window = window_,
                                .filters_FM = melmat_,
                                .normalized = settings_.normalized});
  if (features.values.defined()) return features;
  if (settings_.center) x = mirror_ends(x, num_samples, margin);

  const torch::Tensor spectrum_BFT =
      torch::stft(x, settings_.n_fft, settings_.hop_length,
                  settings_.win_length.value_or(settings_.n_fft), window_,
                  /*center=*/false, "reflect", settings_.normalized, /*onesided=*/true,
                  /*return_complex=*/true);
  const torch::Tensor parts = torch::view_as_real(spectrum_BFT);
  const torch::Tensor power_BFT = parts.select(-1, 0).square() + parts.select(-1, 1).square();
  const torch::Tensor mel = torch::matmul(power_BFT.transpose(1, 2), melmat_.to(torch::kFloat32))
                                .clamp_min_(1e-10)
                                .log_();
  features.values = zero_padding(mel, valid_mask(features.lengths, mel.size(1), mel.device()));
  return features;
}

}  // namespace tutti::speech
