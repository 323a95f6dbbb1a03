#include "tutti/core/random.h"

#include <cmath>
#include <numbers>

namespace tutti {
namespace {
std::uint64_t mix(std::uint64_t x) noexcept {  // the splitmix64 finalizer
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
}  // namespace

std::uint64_t hash64(std::string_view text) noexcept {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix(h);
}

std::uint64_t hash_combine(std::initializer_list<std::uint64_t> parts) noexcept {
  std::uint64_t h = parts.size();
  for (const auto part : parts) h = mix(h ^ mix(part));
  return h;
}

Random::Random(std::initializer_list<std::uint64_t> key) noexcept {
  const std::uint64_t folded = hash_combine(key);
  key_ = {static_cast<std::uint32_t>(folded), static_cast<std::uint32_t>(folded >> 32)};
  stream_ = mix(folded);
}

void Random::refill() noexcept {
  std::uint32_t c[4] = {
      static_cast<std::uint32_t>(counter_), static_cast<std::uint32_t>(counter_ >> 32),
      static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)};
  std::uint32_t k0 = key_[0];
  std::uint32_t k1 = key_[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ULL * c[0];
    const std::uint64_t p1 = 0xCD9E8D57ULL * c[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  ++counter_;
  block_ = {c[0] | (static_cast<std::uint64_t>(c[1]) << 32),
            c[2] | (static_cast<std::uint64_t>(c[3]) << 32)};
  left_ = 2;
}

Random::result_type Random::operator()() noexcept {
  if (left_ == 0) refill();
  return block_[--left_];
}

double Random::uniform() noexcept { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

double Random::uniform(double low, double high) noexcept { return low + (high - low) * uniform(); }

std::uint64_t Random::below(std::uint64_t n) noexcept {
  // Lemire: multiply, and reject the few values that would bias the result.
  unsigned __int128 product = static_cast<unsigned __int128>((*this)()) * n;
  if (static_cast<std::uint64_t>(product) < n) {
    const std::uint64_t threshold = (0 - n) % n;
    while (static_cast<std::uint64_t>(product) < threshold)
      product = static_cast<unsigned __int128>((*this)()) * n;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

double Random::normal() noexcept {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace tutti
