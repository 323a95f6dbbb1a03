// The randomness of our own dropout, on CPUs (dropout.cpp) and GPUs (fused.cpp): one number from
// torch's CPU generator keys a hash of every element's index.
#pragma once

#include <cstdint>

namespace tutti::speech {

std::uint64_t draw_dropout_key();
// Hashes of 31 bits below this are dropped.
inline std::int32_t dropout_threshold(double rate) {
  return static_cast<std::int32_t>(rate * 2147483648.0);
}

}  // namespace tutti::speech
