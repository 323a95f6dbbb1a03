#include "tutti/data/io/resample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <numbers>
#include <numeric>

#include "tutti/core/error.h"
#include "tutti/core/vector_clones.h"

namespace tutti::data {
namespace {

constexpr int kZeroCrossings = 24;
constexpr double kBeta = 8.0;
constexpr double kRollOff = 0.95;
constexpr double kMaxTable = 1 << 24;  // taps over all phases, 64 MiB

double bessel_i0(double x) {
  double sum = 1;
  double term = 1;
  for (int k = 1; term > sum * 1e-17; ++k) {
    term *= (x / (2 * k)) * (x / (2 * k));
    sum += term;
  }
  return sum;
}

struct Filter {
  int up = 1;  // output samples per `down` input samples
  int down = 1;
  int half = 0;  // taps reach from -half to +half input samples around the output's place
  int taps = 0;  // per phase, 2 * half + 1 rounded up to a multiple of 8
  std::vector<float> table;  // [up][taps]
};

std::shared_ptr<const Filter> make_filter(int up, int down) {
  auto filter = std::make_shared<Filter>();
  filter->up = up;
  filter->down = down;
  const double cutoff =
      kRollOff * std::min(1.0, static_cast<double>(up) / down);  // of the input's Nyquist
  const double width = kZeroCrossings / cutoff;
  filter->half = static_cast<int>(std::ceil(width));
  filter->taps = (2 * filter->half + 1 + 7) / 8 * 8;
  filter->table.assign(static_cast<std::size_t>(up) * filter->taps, 0.0F);
  const double norm = bessel_i0(kBeta);
  std::vector<double> phase(static_cast<std::size_t>(2 * filter->half + 1));
  for (int p = 0; p < up; ++p) {
    double sum = 0;
    for (int j = -filter->half; j <= filter->half; ++j) {
      const double t = static_cast<double>(p) / up - j;  // in input samples
      double tap = 0;
      if (std::abs(t) < width) {
        const double x = std::numbers::pi * cutoff * t;
        const double sinc = std::abs(x) < 1e-12 ? 1.0 : std::sin(x) / x;
        tap = sinc * bessel_i0(kBeta * std::sqrt(1 - (t / width) * (t / width))) / norm;
      }
      phase[static_cast<std::size_t>(j + filter->half)] = tap;
      sum += tap;
    }
    // Each phase passes a constant unchanged.
    float* row = filter->table.data() + static_cast<std::size_t>(p) * filter->taps;
    for (std::size_t j = 0; j < phase.size(); ++j) row[j] = static_cast<float>(phase[j] / sum);
  }
  return filter;
}

std::shared_ptr<const Filter> shared_filter(int up, int down) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, std::shared_ptr<const Filter>> filters;
  const std::scoped_lock lock(mutex);
  auto& slot = filters[{up, down}];
  if (!slot) slot = make_filter(up, down);
  return slot;
}

inline float sum_of_products(const float* a, const float* b, std::size_t n) noexcept {
  float part[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::size_t k = 0; k < 8; ++k) part[k] += a[i + k] * b[i + k];
  for (; i < n; ++i) part[0] += a[i] * b[i];
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

// Every output's window of `padded` with the phase of the filter that belongs to it.
TUTTI_VECTOR_CLONES void apply(const Filter& filter, const float* padded, float* out,
                               std::size_t count) {
  const auto up = static_cast<std::size_t>(filter.up);
  const auto taps = static_cast<std::size_t>(filter.taps);
  const std::size_t whole = static_cast<std::size_t>(filter.down) / up;
  const std::size_t rest = static_cast<std::size_t>(filter.down) % up;
  std::size_t phase = 0;  // counted along: a division takes longer than the window
  for (std::size_t k = 0; k < count; ++k) {
    out[k] = sum_of_products(padded, filter.table.data() + phase * taps, taps);
    padded += whole;
    phase += rest;
    if (phase < up) continue;
    phase -= up;
    ++padded;
  }
}

}  // namespace

float dot(const float* a, const float* b, std::size_t n) noexcept {
  return sum_of_products(a, b, n);
}

std::vector<float> resample(std::span<const float> samples, int from_rate, int to_rate) {
  if (from_rate == to_rate || samples.empty()) return {samples.begin(), samples.end()};
  const int divisor = std::gcd(from_rate, to_rate);
  // Rates without a common divisor (a damaged header, mostly) would need a filter of gigabytes.
  const double up_phases = static_cast<double>(to_rate) / divisor;
  const double taps_each =
      2 * kZeroCrossings / kRollOff * std::max(1.0, static_cast<double>(from_rate) / to_rate);
  if (up_phases * taps_each > kMaxTable)
    throw DataError(
        fmt::format("cannot resample from {} Hz to {} Hz: the rates have too little in common",
                    from_rate, to_rate));
  const auto filter = shared_filter(to_rate / divisor, from_rate / divisor);
  const auto up = static_cast<std::uint64_t>(filter->up);
  const auto down = static_cast<std::uint64_t>(filter->down);
  const auto taps = static_cast<std::size_t>(filter->taps);
  // Zeros on both sides let every output read a whole window.
  std::vector<float> padded(samples.size() + static_cast<std::size_t>(filter->half) + taps, 0.0F);
  std::copy(samples.begin(), samples.end(), padded.begin() + filter->half);
  std::vector<float> out((samples.size() * up + down - 1) / down);
  apply(*filter, padded.data(), out.data(), out.size());
  return out;
}

}  // namespace tutti::data
