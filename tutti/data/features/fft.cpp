#include "tutti/data/features/fft.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <type_traits>

#include "tutti/core/vector_clones.h"

namespace tutti::data {

template <class Real>
Fft<Real>::Fft(std::size_t size) : place_(size, 0), cos_(size), sin_(size) {
  for (std::size_t i = 1; i < size; ++i)
    place_[i] = place_[i / 2] / 2 + (i % 2 != 0 ? size / 2 : 0);
  for (std::size_t k = 0; k < size; ++k) {
    const double angle = -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(size);
    cos_[k] = static_cast<Real>(std::cos(angle));
    sin_[k] = static_cast<Real>(std::sin(angle));
  }
}

namespace {

// One point of all lanes; written out because compilers do not see that the points of a butterfly
// lie apart, and so leave a plain loop over the lanes as it is.
using FloatLanes [[gnu::vector_size(32)]] = float;
using DoubleLanes [[gnu::vector_size(32)]] = double;

template <class Real, class Point>  // Point: lanes, or Real itself for one signal
struct Butterflies {
  std::size_t size;
  const Real *cos, *sin;
  Real *re, *im;

  [[gnu::always_inline]] void run() const noexcept {
    std::size_t half = 1;
    for (; 4 * half <= size; half *= 4) two_rounds(half);
    if (half < size) last_round();
  }

 private:
  // Rounds `half` and `2 * half` at once (a pass over memory costs more than its arithmetic):
  // points k, k + half, k + 2 half, k + 3 half of a block, whose factors are w^0, w^2k, w^k, w^3k.
  [[gnu::always_inline]] void two_rounds(std::size_t half) const noexcept {
    const std::size_t stride = size / (4 * half);
    for (std::size_t begin = 0; begin < size; begin += 4 * half)
      for (std::size_t k = 0; k < half; ++k) {
        const std::size_t at = begin + k;
        const Point a_re = get(re, at), a_im = get(im, at);
        const auto [b_re, b_im] = turned(at + half, 2 * k * stride);
        const auto [c_re, c_im] = turned(at + 2 * half, k * stride);
        const auto [d_re, d_im] = turned(at + 3 * half, 3 * k * stride);
        const Point even_re = a_re + b_re, even_im = a_im + b_im;
        const Point dif_re = a_re - b_re, dif_im = a_im - b_im;
        const Point odd_re = c_re + d_re, odd_im = c_im + d_im;
        const Point turn_re = c_im - d_im, turn_im = d_re - c_re;  // -i (c - d)
        put(at, even_re + odd_re, even_im + odd_im);
        put(at + half, dif_re + turn_re, dif_im + turn_im);
        put(at + 2 * half, even_re - odd_re, even_im - odd_im);
        put(at + 3 * half, dif_re - turn_re, dif_im - turn_im);
      }
  }
  [[gnu::always_inline]] void last_round() const noexcept {
    const std::size_t half = size / 2;
    for (std::size_t k = 0; k < half; ++k) {
      const Point even_re = get(re, k), even_im = get(im, k);
      const auto [odd_re, odd_im] = turned(k + half, k);
      put(k, even_re + odd_re, even_im + odd_im);
      put(k + half, even_re - odd_re, even_im - odd_im);
    }
  }
  struct Complex {
    Point re, im;
  };
  [[gnu::always_inline]] Complex turned(std::size_t at, std::size_t angle) const noexcept {
    const Point x = get(re, at), y = get(im, at);
    const Real c = cos[angle], s = sin[angle];
    return {c * x - s * y, c * y + s * x};
  }
  static constexpr std::size_t kWidth = std::is_same_v<Point, Real> ? 1 : Fft<Real>::kLanes;
  [[gnu::always_inline]] static Point get(const Real* from, std::size_t at) noexcept {
    Point point;
    std::memcpy(&point, from + at * kWidth, sizeof(point));
    return point;
  }
  [[gnu::always_inline]] void put(std::size_t at, Point x, Point y) const noexcept {
    std::memcpy(re + at * kWidth, &x, sizeof(x));
    std::memcpy(im + at * kWidth, &y, sizeof(y));
  }
};

TUTTI_VECTOR_CLONES void run_lanes(std::size_t size, const float* cos, const float* sin, float* re,
                                   float* im) noexcept {
  Butterflies<float, FloatLanes>{size, cos, sin, re, im}.run();
}
TUTTI_VECTOR_CLONES void run_lanes(std::size_t size, const double* cos, const double* sin,
                                   double* re, double* im) noexcept {
  Butterflies<double, DoubleLanes>{size, cos, sin, re, im}.run();
}

}  // namespace

template <class Real>
void Fft<Real>::transform(Real* real, Real* imag) const noexcept {
  run_lanes(place_.size(), cos_.data(), sin_.data(), real, imag);
}
template <class Real>
void Fft<Real>::transform_one(Real* real, Real* imag) const noexcept {
  Butterflies<Real, Real>{place_.size(), cos_.data(), sin_.data(), real, imag}.run();
}
template class Fft<float>;
template class Fft<double>;

std::vector<float> convolve(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || b.empty()) return {};
  const std::size_t out_size = a.size() + b.size() - 1;
  std::size_t size = 2;
  while (size < out_size) size *= 2;
  const Fft<double> fft(size);
  // a and b ride as real and imaginary part of one signal z: Z(k)^2 holds their product.
  std::vector<double> re(size, 0.0);
  std::vector<double> im(size, 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) re[fft.place(i)] = a[i];
  for (std::size_t i = 0; i < b.size(); ++i) im[fft.place(i)] = b[i];
  fft.transform_one(re.data(), im.data());
  // A(k) B(k) = (Z(k)^2 - conj(Z(n-k))^2) / 4i, conjugated here for the way back.
  std::vector<double> pr(size);
  std::vector<double> pi(size);
  for (std::size_t k = 0; k < size; ++k) {
    const std::size_t m = (size - k) % size;
    const double sr = re[k] * re[k] - im[k] * im[k] - (re[m] * re[m] - im[m] * im[m]);
    const double si = 2 * re[k] * im[k] + 2 * re[m] * im[m];
    pr[fft.place(k)] = si / 4;
    pi[fft.place(k)] = sr / 4;
  }
  fft.transform_one(pr.data(), pi.data());
  std::vector<float> out(out_size);
  for (std::size_t i = 0; i < out_size; ++i)
    out[i] = static_cast<float>(pr[i] / static_cast<double>(size));
  return out;
}

}  // namespace tutti::data
