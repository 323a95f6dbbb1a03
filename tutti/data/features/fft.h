// A small FFT: powers of two, double precision, several independent signals at once.
//
// Signals lie beside each other (lane l of point k is x[k * kLanes + l]), so that every butterfly
// is one vector instruction however the compiler spells it. Why not a library: 80 lines, no
// dependency, and the statistics must not depend on which one a machine has.
#pragma once

#include <cstddef>
#include <vector>

namespace tutti::data {

class Fft {
 public:
  // REQUIRES: size is a power of two, at least 2.
  explicit Fft(std::size_t size);
  std::size_t size() const noexcept { return size_; }
  static constexpr std::size_t kLanes = 4;
  // In place, over kLanes signals; real and imaginary parts have size() * kLanes elements.
  void transform(double* real, double* imag) const noexcept;
  // One signal.
  void transform_one(double* real, double* imag) const noexcept;

 private:
  std::size_t size_;
  std::vector<std::size_t> reversed_;  // bit-reversed positions
  std::vector<double> cos_, sin_;      // of -2 pi k / size, k < size / 2
};

// Full linear convolution, a.size() + b.size() - 1 samples.
std::vector<float> convolve(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tutti::data
