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

}  // namespace

std::uint32_t crc32c(std::string_view data, std::uint32_t crc) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2");
  if (has_sse42) return ~hardware(bytes, data.size(), ~crc);
#endif
  return ~portable(bytes, data.size(), ~crc);
}

}  // namespace tutti
