// Numbers that are written for people and for other programs, rounded so that they do not depend on
// the processor, the number of threads or the batch: the last digits of a float are an accident.
#pragma once

#include <cmath>

namespace tutti {

// How many digits results have (docs/decoding.md).
inline constexpr int kScoreDecimals = 2;  // scores (natural logarithms) and confidences
inline constexpr int kTimeDecimals = 2;   // seconds
inline constexpr int kOutputDigits = 4;   // significant ones, of a model's own numbers

// round_decimals(-112.99391563978261, 2) == -112.99. What is not finite stays.
inline double round_decimals(double value, int digits) {
  if (!std::isfinite(value)) return value;
  const double scale = std::pow(10.0, digits);
  const double rounded = std::round(value * scale) / scale;
  return rounded == 0 ? 0.0 : rounded;  // no -0
}

// round_significant(123456.789, 3) == 123000.
inline double round_significant(double value, int digits) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value))));
  const int shift = digits - 1 - exponent;
  const double scale = std::pow(10.0, std::abs(shift));
  return shift >= 0 ? std::round(value * scale) / scale : std::round(value / scale) * scale;
}

}  // namespace tutti
