// Change of sample rate by a polyphase windowed-sinc filter (Kaiser window, 24 zero crossings each
// side: pass band flat to 0.93 of Nyquist, images and aliases about 80 dB down).
//
//   std::vector<float> at_16k = resample(at_44k, 44100, 16000);
//
// The output has ceil(n * to / from) samples and no delay. Pure; thread-safe (filters are built
// once per pair of rates and shared).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tutti::data {

// REQUIRES: rates are positive. Throws DataError for rates with no useful common divisor.
std::vector<float> resample(std::span<const float> samples, int from_rate, int to_rate);

// The sum of a[i] * b[i], in eight partial sums so that the compiler may use vector registers.
float dot(const float* a, const float* b, std::size_t n) noexcept;

}  // namespace tutti::data
