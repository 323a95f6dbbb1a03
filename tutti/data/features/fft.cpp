#include "tutti/data/features/fft.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "tutti/core/vector_clones.h"

namespace tutti::data {

Fft::Fft(std::size_t size) : size_(size), reversed_(size, 0), cos_(size / 2), sin_(size / 2) {
  for (std::size_t i = 1; i < size; ++i)
    reversed_[i] = reversed_[i / 2] / 2 + (i % 2 != 0 ? size / 2 : 0);
  for (std::size_t k = 0; k < size / 2; ++k) {
    const double angle = -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(size);
    cos_[k] = std::cos(angle);
    sin_[k] = std::sin(angle);
  }
}

namespace {

struct Tables {
  std::size_t size;
  const std::size_t* reversed;
  const double *cos, *sin;
};

template <std::size_t kWidth>
[[gnu::always_inline]] inline void run(const Tables& t, double* real, double* imag) noexcept {
  for (std::size_t i = 0; i < t.size; ++i) {
    const std::size_t j = t.reversed[i];
    if (i >= j) continue;
    for (std::size_t l = 0; l < kWidth; ++l) {
      std::swap(real[i * kWidth + l], real[j * kWidth + l]);
      std::swap(imag[i * kWidth + l], imag[j * kWidth + l]);
    }
  }
  std::size_t half = 1;
  if (t.size >= 4) {  // the first two rounds at once: their factors are 1 and -i
    for (std::size_t begin = 0; begin < t.size; begin += 4) {
      double* __restrict re = real + begin * kWidth;
      double* __restrict im = imag + begin * kWidth;
      for (std::size_t l = 0; l < kWidth; ++l) {
        const double sum_re = re[l] + re[kWidth + l], sum_im = im[l] + im[kWidth + l];
        const double dif_re = re[l] - re[kWidth + l], dif_im = im[l] - im[kWidth + l];
        const double odd_re = re[2 * kWidth + l] + re[3 * kWidth + l];
        const double odd_im = im[2 * kWidth + l] + im[3 * kWidth + l];
        const double turn_re = im[2 * kWidth + l] - im[3 * kWidth + l];
        const double turn_im = re[3 * kWidth + l] - re[2 * kWidth + l];
        re[l] = sum_re + odd_re;
        im[l] = sum_im + odd_im;
        re[kWidth + l] = dif_re + turn_re;
        im[kWidth + l] = dif_im + turn_im;
        re[2 * kWidth + l] = sum_re - odd_re;
        im[2 * kWidth + l] = sum_im - odd_im;
        re[3 * kWidth + l] = dif_re - turn_re;
        im[3 * kWidth + l] = dif_im - turn_im;
      }
    }
    half = 4;
  }
  for (; half < t.size; half *= 2) {
    const std::size_t stride = t.size / (2 * half);
    for (std::size_t begin = 0; begin < t.size; begin += 2 * half) {
      double* __restrict low_re = real + begin * kWidth;
      double* __restrict low_im = imag + begin * kWidth;
      double* __restrict high_re = real + (begin + half) * kWidth;
      double* __restrict high_im = imag + (begin + half) * kWidth;
      for (std::size_t k = 0; k < half; ++k) {
        const double c = t.cos[k * stride];
        const double s = t.sin[k * stride];
        for (std::size_t l = 0; l < kWidth; ++l) {
          const std::size_t at = k * kWidth + l;
          const double re = c * high_re[at] - s * high_im[at];
          const double im = c * high_im[at] + s * high_re[at];
          high_re[at] = low_re[at] - re;
          high_im[at] = low_im[at] - im;
          low_re[at] += re;
          low_im[at] += im;
        }
      }
    }
  }
}

TUTTI_VECTOR_CLONES void run_lanes(const Tables& tables, double* real, double* imag) noexcept {
  run<Fft::kLanes>(tables, real, imag);
}

}  // namespace

void Fft::transform(double* real, double* imag) const noexcept {
  run_lanes({size_, reversed_.data(), cos_.data(), sin_.data()}, real, imag);
}
void Fft::transform_one(double* real, double* imag) const noexcept {
  run<1>({size_, reversed_.data(), cos_.data(), sin_.data()}, real, imag);
}

std::vector<float> convolve(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || b.empty()) return {};
  const std::size_t out_size = a.size() + b.size() - 1;
  std::size_t size = 2;
  while (size < out_size) size *= 2;
  const Fft fft(size);
  // a and b ride as real and imaginary part of one signal z: Z(k)^2 holds their product.
  std::vector<double> re(size, 0.0);
  std::vector<double> im(size, 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) re[i] = a[i];
  for (std::size_t i = 0; i < b.size(); ++i) im[i] = b[i];
  fft.transform_one(re.data(), im.data());
  // A(k) B(k) = (Z(k)^2 - conj(Z(n-k))^2) / 4i, conjugated here for the way back.
  std::vector<double> pr(size);
  std::vector<double> pi(size);
  for (std::size_t k = 0; k < size; ++k) {
    const std::size_t m = (size - k) % size;
    const double sr = re[k] * re[k] - im[k] * im[k] - (re[m] * re[m] - im[m] * im[m]);
    const double si = 2 * re[k] * im[k] + 2 * re[m] * im[m];
    pr[k] = si / 4;
    pi[k] = sr / 4;
  }
  fft.transform_one(pr.data(), pi.data());
  std::vector<float> out(out_size);
  for (std::size_t i = 0; i < out_size; ++i)
    out[i] = static_cast<float>(pr[i] / static_cast<double>(size));
  return out;
}

}  // namespace tutti::data
