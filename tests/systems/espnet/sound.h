// The sounds of tools/make_espnet_folders.py, sample for sample.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// Noise whose loudness rises and falls; integers only, so that any language makes the same.
inline std::vector<float> test_sound(std::int64_t seed, std::size_t count) {
  std::vector<float> out(count);
  std::int64_t x = seed;
  for (std::size_t i = 0; i < count; ++i) {
    x = (x * 1103515245 + 12345) % 2147483648;
    const std::int64_t loudness = 1 + static_cast<std::int64_t>(i) / 800 * (seed % 7 + 3) % 11;
    std::int64_t value = ((x >> 16) % 8192 - 4096) * loudness;
    value = value >= 0 ? value / 11 : -((-value + 10) / 11);  // rounds down, as Python does
    out[i] = static_cast<float>(value) / 32768.0F;
  }
  return out;
}

inline std::vector<std::vector<float>> test_sounds(std::string_view task, std::size_t count = 4) {
  const bool is_s2t = task == "s2t";
  std::vector<std::size_t> lengths = is_s2t
                                         ? std::vector<std::size_t>{320000, 200001, 470000, 90000}
                                         : std::vector<std::size_t>{16000, 23456, 40321, 9000};
  for (std::size_t i = 4; i < count; ++i)
    lengths.push_back(is_s2t ? 50000 + i * 73421 % 430000 : 6000 + i * 3571 % 30000);
  std::vector<std::vector<float>> out;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    out.push_back(test_sound(static_cast<std::int64_t>(i) + 1, lengths[i]));
  return out;
}

// ESPnet puts <eos> behind every hypothesis of the last step allowed, also behind one that has just
// ended of itself; it takes one away and prints the other.
inline std::string without_second_end(std::string text) {
  constexpr std::string_view kEnd = "<sos/eos>";
  if (text.ends_with(kEnd)) text.resize(text.size() - kEnd.size());
  return text;
}

}  // namespace tutti
