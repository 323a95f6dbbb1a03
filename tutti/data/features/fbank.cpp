#include "tutti/data/features/fbank.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
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
  window_.assign(static_cast<std::size_t>(n_fft), 0);
  for (int i = 0; i < win; ++i)
    window_[static_cast<std::size_t>((n_fft - win) / 2 + i)] =
        static_cast<float>(0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / win));

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

constexpr std::size_t kLanes = Fft<float>::kLanes;
constexpr std::size_t kFrames = 2 * kLanes;  // two real frames are one complex signal

// One number of each lane. Arithmetic on these is written out in vectors because it is most of the
// time of statistics, and loops over lanes were seen to stay scalar.
using Floats [[gnu::vector_size(32)]] = float;
using Bits [[gnu::vector_size(32)]] = std::int32_t;
static_assert(sizeof(Floats) == kLanes * sizeof(float) && kLanes == 8);

[[gnu::always_inline]] inline Floats get(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
[[gnu::always_inline]] inline void put(float* to, Floats x) { std::memcpy(to, &x, sizeof(x)); }

// rows[i][l] becomes rows[l][i].
[[gnu::always_inline]] inline void transpose(Floats (&rows)[kLanes]) {
  for (std::size_t i = 0; i < 8; i += 2) {
    const Floats a = rows[i], b = rows[i + 1];
    rows[i] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
    rows[i + 1] = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (const std::size_t i : {0, 1, 4, 5}) {
    const Floats a = rows[i], b = rows[i + 2];
    rows[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
    rows[i + 2] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const Floats a = rows[i], b = rows[i + 4];
    rows[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Windows kLanes frames, one per lane, and puts their points where the FFT wants them.
TUTTI_VECTOR_CLONES void load(const Fft<float>& fft, const std::vector<float>& window,
                              const float* const* frames, float* to) {
  std::size_t i = 0;
  for (; i + kLanes <= window.size(); i += kLanes) {
    Floats rows[kLanes];
    const Floats factors = get(&window[i]);
    for (std::size_t l = 0; l < kLanes; ++l) rows[l] = get(frames[l] + i) * factors;
    transpose(rows);
    for (std::size_t j = 0; j < kLanes; ++j) put(to + fft.place(i + j) * kLanes, rows[j]);
  }
  for (; i < window.size(); ++i)  // n_fft = 4
    for (std::size_t l = 0; l < kLanes; ++l)
      to[fft.place(i) * kLanes + l] = frames[l][i] * window[i];
}

// The power spectra (n_fft / 2 + 1 bins, kFrames) of pairs of real signals that were transformed
// as one.
TUTTI_VECTOR_CLONES void to_power(std::size_t n_fft, const float* re, const float* im,
                                  float* power) {
  for (std::size_t k = 0; k <= n_fft / 2; ++k) {
    const std::size_t m = (n_fft - k) % n_fft;
    const Floats xr = get(re + k * kLanes), yr = get(re + m * kLanes);
    const Floats xi = get(im + k * kLanes), yi = get(im + m * kLanes);
    const Floats a_re = xr + yr, a_im = xi - yi, b_re = xi + yi, b_im = yr - xr;
    put(power + k * kFrames, 0.25F * (a_re * a_re + a_im * a_im));
    put(power + k * kFrames + kLanes, 0.25F * (b_re * b_re + b_im * b_im));
  }
}

// The natural logarithm of normal positive numbers: x = m 2^e with m in [sqrt(1/2), sqrt(2)),
// ln m = 2 atanh(z) with z = (m - 1) / (m + 1), |z| < 0.172: the series up to z^9 is good to 1e-9,
// which leaves the rounding of float.
[[gnu::always_inline]] inline Floats log_of(Floats x) {
  constexpr std::int32_t kRootHalf = 0x3f3504f3;
  const Bits shifted = std::bit_cast<Bits>(x) - kRootHalf;
  const Floats exponent = __builtin_convertvector(shifted >> 23, Floats);
  const Floats m = std::bit_cast<Floats>((shifted & 0x007fffff) + kRootHalf);
  const Floats z = (m - 1.0F) / (m + 1.0F);
  const Floats q = z * z;
  const Floats tail = q * (1.0F / 3 + q * (1.0F / 5 + q * (1.0F / 7 + q * (1.0F / 9))));
  // ln 2 in two parts, the first exact in products with small integers.
  return exponent * 0.693359375F + (2.0F * z + (2.0F * z * tail - exponent * 2.12194440e-4F));
}
[[gnu::always_inline]] inline Floats floored(Floats x) {
  return x > 1e-10F ? x : Floats{} + 1e-10F;
}

TUTTI_VECTOR_CLONES void log_energies(const std::vector<float>& weights, const float* rows,
                                      float* out) {
  Floats first{}, second{};
  for (std::size_t j = 0; j < weights.size(); ++j) {
    first += weights[j] * get(rows + j * kFrames);
    second += weights[j] * get(rows + j * kFrames + kLanes);
  }
  put(out, log_of(floored(first)));
  put(out + kLanes, log_of(floored(second)));
}

}  // namespace

Array Fbank::compute(std::span<const float> speech) const {
  const auto n_fft = static_cast<std::size_t>(settings_.n_fft);
  const std::size_t half = n_fft / 2;
  if (speech.size() <= half)
    throw DataError(fmt::format("{} samples are too few for features, at least {} are needed",
                                speech.size(), half + 1),
                    "leave such utterances out with min_length or on_bad: skip");
  const auto frames = static_cast<std::size_t>(num_frames(speech.size()));
  const auto bands = filters_.size();
  Array out = Array::make(DType::kFloat32,
                          {static_cast<std::int64_t>(frames), static_cast<std::int64_t>(bands)});
  float* result = out.data<float>();
  const auto hop = static_cast<std::size_t>(settings_.hop_length);
  const auto count_samples = static_cast<std::int64_t>(speech.size());
  std::vector<float> re(n_fft * kLanes), im(n_fft * kLanes), power((half + 1) * kFrames);
  std::vector<float> edges(kFrames * n_fft);
  for (std::size_t first = 0; first < frames; first += kFrames) {
    const float* sources[kFrames];
    for (std::size_t l = 0; l < kFrames; ++l) {
      const auto begin = static_cast<std::int64_t>(std::min(first + l, frames - 1) * hop) -
                         static_cast<std::int64_t>(half);
      const auto end = begin + static_cast<std::int64_t>(n_fft);
      if (begin >= 0 && end <= count_samples) {
        sources[l] = speech.data() + begin;
        continue;
      }
      float* edge = edges.data() + l * n_fft;  // reflected at the ends
      for (std::int64_t i = begin; i < end; ++i)
        *edge++ = speech[static_cast<std::size_t>(i < 0               ? -i
                                                  : i < count_samples ? i
                                                                      : 2 * count_samples - 2 - i)];
      sources[l] = edges.data() + l * n_fft;
    }
    load(fft_, window_, sources, re.data());
    load(fft_, window_, sources + kLanes, im.data());
    fft_.transform(re.data(), im.data());
    to_power(n_fft, re.data(), im.data(), power.data());
    const std::size_t count = std::min(kFrames, frames - first);
    for (std::size_t band = 0; band < bands; ++band) {
      float energy[kFrames];
      const Filter& filter = filters_[band];
      log_energies(filter.weights, power.data() + filter.first * kFrames, energy);
      for (std::size_t l = 0; l < count; ++l) result[(first + l) * bands + band] = energy[l];
    }
  }
  return out;
}

}  // namespace tutti::data
