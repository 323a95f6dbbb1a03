#include "tutti/data/features/fbank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/core/vector_clones.h"

namespace tutti::data {
namespace {

// Slaney: linear below 1 kHz, logarithmic above.
constexpr double kHzPerMel = 200.0 / 3;
constexpr double kBreakHz = 1000;
constexpr double kBreakMel = kBreakHz / kHzPerMel;
const double kLogStep = std::log(6.4) / 27;

double hz_to_mel(double hz) {
  return hz < kBreakHz ? hz / kHzPerMel : kBreakMel + std::log(hz / kBreakHz) / kLogStep;
}
double mel_to_hz(double mel) {
  return mel < kBreakMel ? mel * kHzPerMel : kBreakHz * std::exp(kLogStep * (mel - kBreakMel));
}

FbankSettings checked(const FbankSettings& s) {
  const auto fail = [](const std::string& what) { throw ConfigError("frontend: " + what); };
  if (s.n_fft < 4 || (s.n_fft & (s.n_fft - 1)) != 0 || s.n_fft > (1 << 20))
    fail(fmt::format("n_fft: got {}, expected a power of two", s.n_fft));
  if (s.win_length.value_or(s.n_fft) < 1 || s.win_length.value_or(s.n_fft) > s.n_fft)
    fail(fmt::format("win_length: got {}, expected 1 to n_fft = {}", *s.win_length, s.n_fft));
  if (s.hop_length < 1) fail(fmt::format("hop_length: got {}, expected 1 or more", s.hop_length));
  if (s.n_mels < 1) fail(fmt::format("n_mels: got {}, expected 1 or more", s.n_mels));
  const double top = s.fmax.value_or(s.fs / 2.0);
  if (s.fs < 1 || s.fmin < 0 || !(top > s.fmin) || top > s.fs / 2.0)
    fail(fmt::format("got fmin {} and fmax {}, expected 0 <= fmin < fmax <= fs / 2 = {}", s.fmin,
                     top, s.fs / 2.0));
  return s;
}

}  // namespace

std::uint64_t FbankSettings::hash() const {
  return hash64(fmt::format("fbank {} {} {} {} {} {} {}", fs, n_fft, win_length.value_or(n_fft),
                            hop_length, n_mels, fmin, fmax.value_or(fs / 2.0)));
}

config::Schema<FbankSettings> fbank_schema() {
  using F = FbankSettings;
  config::Schema<F> s("frontend_conf", "Log-mel filter banks.");
  s.field("fs", &F::fs, "sample rate", {.min = 1, .unit = "Hz"});
  s.field("n_fft", &F::n_fft, "FFT size, a power of two", {.min = 4});
  s.field("win_length", &F::win_length, "window; null: n_fft", {.min = 1, .unit = "samples"});
  s.field("hop_length", &F::hop_length, "step between frames", {.min = 1, .unit = "samples"});
  s.field("n_mels", &F::n_mels, "mel bands", {.min = 1});
  s.field("fmin", &F::fmin, "lowest frequency", {.min = 0, .unit = "Hz"});
  s.field("fmax", &F::fmax, "highest frequency; null: fs / 2", {.min = 0, .unit = "Hz"});
  return s;
}

Fbank::Fbank(const FbankSettings& settings)
    : settings_(checked(settings)), fft_(static_cast<std::size_t>(settings.n_fft)) {
  const int n_fft = settings_.n_fft;
  const int win = settings_.win_length.value_or(n_fft);
  window_.assign(static_cast<std::size_t>(n_fft), 0.0);
  for (int i = 0; i < win; ++i)
    window_[static_cast<std::size_t>((n_fft - win) / 2 + i)] =
        0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / win);

  const int bands = settings_.n_mels;
  const double low = hz_to_mel(settings_.fmin);
  const double high = hz_to_mel(settings_.fmax.value_or(settings_.fs / 2.0));
  std::vector<double> edge(static_cast<std::size_t>(bands) + 2);
  for (int i = 0; i < bands + 2; ++i)
    edge[static_cast<std::size_t>(i)] = mel_to_hz(low + (high - low) * i / (bands + 1));
  for (std::size_t m = 0; m < static_cast<std::size_t>(bands); ++m) {
    Filter filter;
    const double norm = 2 / (edge[m + 2] - edge[m]);
    for (int k = 0; k <= n_fft / 2; ++k) {
      const double hz = static_cast<double>(k) * settings_.fs / n_fft;
      const double weight = std::min((hz - edge[m]) / (edge[m + 1] - edge[m]),
                                     (edge[m + 2] - hz) / (edge[m + 2] - edge[m + 1]));
      if (weight <= 0) {
        if (filter.weights.empty())
          filter.first = static_cast<std::size_t>(k) + 1;
        else
          break;
        continue;
      }
      filter.weights.push_back(static_cast<float>(weight * norm));
    }
    filters_.push_back(std::move(filter));
  }
}

std::int64_t Fbank::num_frames(std::size_t num_samples) const noexcept {
  return 1 + static_cast<std::int64_t>(num_samples) / settings_.hop_length;
}

namespace {

// The power spectra (n_fft / 2 + 1 bins, 2 x kLanes) of pairs of real signals that were transformed
// as one.
TUTTI_VECTOR_CLONES void to_power(std::size_t n_fft, const double* re, const double* im,
                                  double* power) {
  constexpr std::size_t kLanes = Fft::kLanes;
  for (std::size_t k = 0; k <= n_fft / 2; ++k) {
    const std::size_t m = (n_fft - k) % n_fft;
    for (std::size_t l = 0; l < kLanes; ++l) {
      const double xr = re[k * kLanes + l], yr = re[m * kLanes + l];
      const double xi = im[k * kLanes + l], yi = im[m * kLanes + l];
      power[k * 2 * kLanes + l] = 0.25 * ((xr + yr) * (xr + yr) + (xi - yi) * (xi - yi));
      power[k * 2 * kLanes + kLanes + l] = 0.25 * ((xi + yi) * (xi + yi) + (yr - xr) * (yr - xr));
    }
  }
}

TUTTI_VECTOR_CLONES void add_weighted(const std::vector<float>& weights, const double* rows,
                                      double* sum) {
  constexpr std::size_t kLanes = 2 * Fft::kLanes;
  for (std::size_t j = 0; j < weights.size(); ++j)
    for (std::size_t l = 0; l < kLanes; ++l) sum[l] += weights[j] * rows[j * kLanes + l];
}

}  // namespace

Array Fbank::compute(std::span<const float> speech) const {
  constexpr std::size_t kLanes = Fft::kLanes;
  const auto n_fft = static_cast<std::size_t>(settings_.n_fft);
  const std::size_t half = n_fft / 2;
  if (speech.size() <= half)
    throw DataError(fmt::format("{} samples are too few for features, at least {} are needed",
                                speech.size(), half + 1),
                    "leave such utterances out with min_length or on_bad: skip");
  std::vector<float> padded(speech.size() + n_fft);
  for (std::size_t i = 0; i < half; ++i) {
    padded[i] = speech[half - i];
    padded[half + speech.size() + i] = speech[speech.size() - 2 - i];
  }
  std::copy(speech.begin(), speech.end(), padded.begin() + static_cast<std::ptrdiff_t>(half));

  const auto frames = static_cast<std::size_t>(num_frames(speech.size()));
  const auto bands = filters_.size();
  Array out = Array::make(DType::kFloat32,
                          {static_cast<std::int64_t>(frames), static_cast<std::int64_t>(bands)});
  float* result = out.data<float>();
  const auto hop = static_cast<std::size_t>(settings_.hop_length);
  std::vector<double> re(n_fft * kLanes), im(n_fft * kLanes), power((half + 1) * 2 * kLanes);
  // 2 x kLanes frames at a time: two real frames are one complex signal.
  for (std::size_t first = 0; first < frames; first += 2 * kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float* a = padded.data() + std::min(first + 2 * l, frames - 1) * hop;
      const float* b = padded.data() + std::min(first + 2 * l + 1, frames - 1) * hop;
      for (std::size_t i = 0; i < n_fft; ++i) {
        re[i * kLanes + l] = a[i] * window_[i];
        im[i * kLanes + l] = b[i] * window_[i];
      }
    }
    fft_.transform(re.data(), im.data());
    to_power(n_fft, re.data(), im.data(), power.data());
    for (std::size_t band = 0; band < bands; ++band) {
      double sum[2 * kLanes] = {};
      const Filter& filter = filters_[band];
      add_weighted(filter.weights, power.data() + filter.first * 2 * kLanes, sum);
      for (std::size_t l = 0; l < kLanes; ++l)
        for (std::size_t which = 0; which < 2; ++which) {
          const std::size_t frame = first + 2 * l + which;
          if (frame < frames)
            result[frame * bands + band] =
                std::log(static_cast<float>(std::max(1e-10, sum[which * kLanes + l])));
        }
    }
  }
  return out;
}

}  // namespace tutti::data
