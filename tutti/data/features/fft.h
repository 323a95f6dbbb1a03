// A small FFT: powers of two, several independent signals at once.
//
// Signals lie beside each other (lane l of point k is x[k * lanes + l]), so that every butterfly
// is one vector instruction however the compiler spells it. Why not a library: 100 lines, no
// dependency, and the statistics must not depend on which one a machine has: the bits are the same
// on every processor.
//
//   Fft<float> fft(512);
//   re[fft.place(i) * kLanes + lane] = x[i];   // input goes where the first round wants it
//   fft.transform(re, im);                      // output is in natural order
//
// Immutable, thread-safe.
#pragma once

#include <cstddef>
#include <vector>

namespace tutti::data {

template <class Real>  // float or double
class Fft {
 public:
  // REQUIRES: size is a power of two, at least 2.
  explicit Fft(std::size_t size);
  static constexpr std::size_t kLanes = 32 / sizeof(Real);
  // Where input point i has to lie (its bits reversed).
  std::size_t place(std::size_t i) const noexcept { return place_[i]; }
  // In place, over kLanes signals; real and imaginary parts have size * kLanes elements.
  void transform(Real* real, Real* imag) const noexcept;
  // One signal.
  void transform_one(Real* real, Real* imag) const noexcept;

 private:
  std::vector<std::size_t> place_;
  std::vector<Real> cos_, sin_;  // of -2 pi k / size, k < size
};
extern template class Fft<float>;
extern template class Fft<double>;

// Full linear convolution, a.size() + b.size() - 1 samples.
std::vector<float> convolve(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tutti::data
