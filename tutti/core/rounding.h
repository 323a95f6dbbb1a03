// Numbers that are written for people and for other programs, rounded so that they do not depend on
// the processor, the number of threads or the batch: the last digits of a float are an accident.
//
// Every rounding has borders, and a value that lies within its noise of one goes either way: of noise / step of all
// values. So the step grows with the value, as the noise of a sum does: float32 models leave about 2e-7 of a score, and
// three digits are 5,000 to 50,000 times as much.
#pragma once

#include <cmath>

namespace tutti {

// How many digits results have (docs/decoding.md).
inline constexpr int kScoreDigits =
    3;  // scores (natural logarithms) and confidences: significant ones,
inline constexpr int kScoreDecimals = 2;  // and at most so many behind the point
inline constexpr int kTimeDecimals = 2;   // seconds
inline constexpr int kRateDecimals = 2;   // error rates, in percent
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

// round_score(-399.315) == -399, round_score(-39.9315) == -39.9, round_score(-0.39931) == -0.4.
inline double round_score(double value) {
  return std::abs(value) < std::pow(10.0, kScoreDigits - kScoreDecimals)
             ? round_decimals(value, kScoreDecimals)
             : round_significant(value, kScoreDigits);
}

inline double round_time(double seconds) { return round_decimals(seconds, kTimeDecimals); }

}  // namespace tutti
