#include "tutti/speech/decoding/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/data/features/fbank.h"

namespace tutti::speech {
namespace {

constexpr double kHopSeconds = 0.01;
constexpr double kStart_dB = 1.8, kEnd_dB = 1.3;
constexpr std::size_t kSmooth = 5;       // frames on each side
constexpr std::size_t kFloorSpan = 750;  // frames on each side
constexpr std::size_t kFloorEvery = 50;  // frames between two floors
constexpr std::size_t kFloorStride = 5;  // the energies are smooth: every fifth tells as much
constexpr std::size_t kJoinGap = 50, kMinSpeech = 10, kPad = 20;  // frames
constexpr float kLeastEnergy = 1e-7F;

data::FbankSettings settings_for(int sample_rate) {
  data::FbankSettings s;
  s.fs = sample_rate;
  s.hop_length = std::max(1, static_cast<int>(std::lround(kHopSeconds * sample_rate)));
  s.win_length = std::max(4, s.hop_length * 5 / 2);
  s.n_fft = static_cast<int>(std::bit_ceil(static_cast<unsigned>(*s.win_length)));
  s.n_mels = 40;
  s.fmin = 100;
  s.fmax = std::min(7600.0, 0.475 * sample_rate);
  return s;
}

// Energies [T, bands], each the mean of its neighbours in time. Running sums, so that an hour takes
// one pass and no second copy of the table per offset.
std::vector<float> smooth_energies(const data::Array& log_energies, std::size_t frames,
                                   std::size_t bands) {
  const float* in = log_energies.data<float>();
  std::vector<float> out(frames * bands);
  std::vector<double> sum(bands);
  const auto energy = [&](std::size_t t, std::size_t k) { return std::exp(in[t * bands + k]); };
  for (std::size_t t = 0; t < std::min(kSmooth, frames); ++t)
    for (std::size_t k = 0; k < bands; ++k) sum[k] += energy(t, k);
  for (std::size_t t = 0; t < frames; ++t) {
    const std::size_t first = t > kSmooth ? t - kSmooth : 0;
    const std::size_t last = std::min(frames - 1, t + kSmooth);
    for (std::size_t k = 0; k < bands; ++k) {
      if (t + kSmooth < frames) sum[k] += energy(t + kSmooth, k);
      if (t > kSmooth) sum[k] -= energy(t - kSmooth - 1, k);
      out[t * bands + k] =
          static_cast<float>(std::max(0.0, sum[k] / static_cast<double>(last - first + 1)));
    }
  }
  return out;
}

float floor_of(const std::vector<float>& energies, std::size_t frames, std::size_t bands,
               std::size_t middle, std::size_t band, std::vector<float>& scratch) {
  scratch.clear();
  const std::size_t first = middle > kFloorSpan ? middle - kFloorSpan : 0;
  const std::size_t last = std::min(frames, middle + kFloorSpan + 1);
  for (std::size_t t = first; t < last; t += kFloorStride)
    scratch.push_back(energies[t * bands + band]);
  const auto at = scratch.begin() + static_cast<std::ptrdiff_t>(scratch.size() * 15 / 100);
  std::nth_element(scratch.begin(), at, scratch.end());
  return std::max(kLeastEnergy, *at);
}

// Mean excess over the bands, in dB, of every frame.
std::vector<float> excess_dB(std::span<const float> samples, int sample_rate) {
  const data::FbankSettings settings = settings_for(sample_rate);
  const data::Fbank fbank(settings);
  const data::Array table = fbank.compute(samples);
  const auto frames = static_cast<std::size_t>(table.shape[0]);
  const auto bands = static_cast<std::size_t>(table.shape[1]);
  const std::vector<float> energies = smooth_energies(table, frames, bands);
  std::vector<float> out(frames);
  std::vector<float> scratch, floors(bands);
  for (std::size_t t = 0; t < frames; ++t) {
    if (t % kFloorEvery == 0)
      for (std::size_t k = 0; k < bands; ++k)
        floors[k] = floor_of(energies, frames, bands, t, k, scratch);
    double sum = 0;
    for (std::size_t k = 0; k < bands; ++k)
      sum += std::max(0.0F,
                      10 * std::log10(std::max(energies[t * bands + k], kLeastEnergy) / floors[k]));
    out[t] = static_cast<float>(sum / static_cast<double>(bands));
  }
  return out;
}

struct Stretch {
  std::size_t begin = 0;
  std::size_t end = 0;  // frames
};

std::vector<Stretch> speech_in(const std::vector<float>& excess) {
  std::vector<Stretch> raw;
  bool inside = false;
  for (std::size_t t = 0; t < excess.size(); ++t) {
    if (!inside && excess[t] >= kStart_dB) {
      inside = true;
      if (!raw.empty() && t - raw.back().end < kJoinGap)
        continue;  // goes on with the stretch before
      raw.push_back({t, t});
    } else if (inside && excess[t] < kEnd_dB) {
      inside = false;
      raw.back().end = t;
    }
  }
  if (inside) raw.back().end = excess.size();
  std::vector<Stretch> out;
  for (Stretch stretch : raw) {
    if (stretch.end - stretch.begin < kMinSpeech) continue;
    stretch.begin -= std::min(stretch.begin, kPad);
    stretch.end = std::min(excess.size(), stretch.end + kPad);
    if (!out.empty() && stretch.begin < out.back().end)  // neighbours share a short gap
      stretch.begin = out.back().end = (stretch.begin + out.back().end) / 2;
    out.push_back(stretch);
  }
  return out;
}

// In the second half, where it is quietest, until every part fits.
std::vector<Stretch> split_long(const std::vector<Stretch>& stretches,
                                const std::vector<float>& excess, std::size_t window) {
  std::vector<Stretch> out;
  for (Stretch rest : stretches) {
    while (rest.end - rest.begin > window) {
      const auto first = excess.begin() + static_cast<std::ptrdiff_t>(rest.begin + window / 2);
      const auto last = excess.begin() + static_cast<std::ptrdiff_t>(rest.begin + window);
      const auto cut = static_cast<std::size_t>(std::min_element(first, last) - excess.begin());
      out.push_back({rest.begin, cut});
      rest.begin = cut;
    }
    out.push_back(rest);
  }
  return out;
}

std::vector<Stretch> merge_short(const std::vector<Stretch>& stretches, std::size_t window) {
  std::vector<Stretch> out;
  for (const Stretch& stretch : stretches) {
    if (!out.empty() && stretch.end - out.back().begin <= window)
      out.back().end = stretch.end;
    else
      out.push_back(stretch);
  }
  return out;
}

}  // namespace

std::vector<Piece> cut_in_pauses(std::span<const float> samples, int sample_rate,
                                 double window_seconds) {
  const std::vector<float> excess = excess_dB(samples, sample_rate);
  const auto window = static_cast<std::size_t>(std::max(2.0, window_seconds / kHopSeconds));
  const auto hop = static_cast<std::size_t>(settings_for(sample_rate).hop_length);
  std::vector<Piece> pieces;
  for (const Stretch& s : merge_short(split_long(speech_in(excess), excess, window), window)) {
    const std::size_t begin = std::min(samples.size(), s.begin * hop);
    const std::size_t end = std::min(samples.size(), s.end * hop);
    if (begin < end) pieces.push_back({begin, end, begin, end});
  }
  return pieces;
}

std::vector<Piece> cut_evenly(std::size_t num_samples, int sample_rate, double window_seconds,
                              double context_seconds) {
  if (!(window_seconds > 2 * context_seconds) || context_seconds < 0)
    throw ConfigError(fmt::format(
        "window: got {} s with {} s of context on each side, expected more than twice the context",
        window_seconds, context_seconds));
  const auto core = static_cast<std::size_t>((window_seconds - 2 * context_seconds) * sample_rate);
  const auto margin = static_cast<std::size_t>(context_seconds * sample_rate);
  std::vector<Piece> pieces;
  for (std::size_t begin = 0; begin < num_samples; begin += core) {
    const std::size_t end = std::min(num_samples, begin + core);
    pieces.push_back(
        {begin - std::min(begin, margin), std::min(num_samples, end + margin), begin, end});
  }
  return pieces;
}

}  // namespace tutti::speech
