#include "tutti/core/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tutti {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? (c >> 1) ^ 0x82F63B78U : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr auto kTable = make_table();

std::uint32_t portable(const unsigned char* p, std::size_t n, std::uint32_t c) noexcept {
  for (; n > 0; --n) c = kTable[(c ^ *p++) & 0xff] ^ (c >> 8);
  return c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t hardware(const unsigned char* p, std::size_t n,
                                                         std::uint32_t c) noexcept {
  std::uint64_t wide = c;
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  c = static_cast<std::uint32_t>(wide);
  for (; n > 0; --n) c = _mm_crc32_u8(c, *p++);
  return c;
}
#endif

// Product of two polynomials modulo Castagnoli's; bit 31 is the constant term.
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b & 1) ? (b >> 1) ^ 0x82F63B78U : b >> 1;
  }
  return product;
}

}  // namespace

// Appending n bytes multiplies a checksum by x^(8n); the rest of the arithmetic is linear.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b,
                             std::uint64_t num_bytes_b) noexcept {
  std::uint32_t shift = 1U << 31;        // x^0
  std::uint32_t power = 1U << (31 - 8);  // x^8, squared at every turn
  for (; num_bytes_b != 0; num_bytes_b >>= 1) {
    if (num_bytes_b & 1) shift = multiply(shift, power);
    power = multiply(power, power);
  }
  return multiply(shift, crc_a) ^ crc_b;
}

std::uint32_t crc32c(std::string_view data, std::uint32_t crc) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2");
  if (has_sse42) return ~hardware(bytes, data.size(), ~crc);
#endif
  return ~portable(bytes, data.size(), ~crc);
}

}  // namespace tutti
