// Random numbers that are a pure function of their key: Philox 4x32-10, counter based.
//
// Every random choice in Tutti is keyed by what it is about, never by who draws it: augmentation by
// (seed, epoch, utterance), a batch plan by (seed, epoch). So the result does not depend on the
// number of threads, workers or ranks, and resuming needs no generator state.
//
//   Random rng({seed, epoch, hash64(utt_id)});
//   double speed = rng.uniform(0.9, 1.1);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace tutti {

// A stable 64-bit hash (FNV-1a with a finalizer): same value on every platform and in every run.
std::uint64_t hash64(std::string_view text) noexcept;
// Folds values into one key; order matters.
std::uint64_t hash_combine(std::initializer_list<std::uint64_t> parts) noexcept;

// Satisfies UniformRandomBitGenerator. A value type: copying it copies the position.
class Random {
 public:
  using result_type = std::uint64_t;
  explicit Random(std::initializer_list<std::uint64_t> key) noexcept;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }
  result_type operator()() noexcept;

  double uniform() noexcept;                         // [0, 1)
  double uniform(double low, double high) noexcept;  // [low, high)
  std::uint64_t below(std::uint64_t n) noexcept;     // [0, n) without bias. REQUIRES: n > 0
  double normal() noexcept;                          // mean 0, variance 1

  // Fisher-Yates with `below`: std::shuffle's result differs between standard libraries.
  template <class Container>
  void shuffle(Container& items) noexcept {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  void refill() noexcept;
  std::array<std::uint32_t, 2> key_{};
  std::uint64_t stream_ = 0;
  std::uint64_t counter_ = 0;
  std::array<std::uint64_t, 2> block_{};
  int left_ = 0;
};

}  // namespace tutti
