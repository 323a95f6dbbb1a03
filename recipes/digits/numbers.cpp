#include "numbers.h"

#include <array>
#include <string_view>

namespace tutti::recipes {
namespace {
constexpr std::array<std::string_view, 20> kSmall = {
    "zero",     "one",     "two",     "three",     "four",     "five",    "six",
    "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<std::string_view, 10> kTens = {
    "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};
}  // namespace

std::string number_in_words(int number) {
  const auto with_rest = [](std::string head, int rest) {
    return rest == 0 ? head : head + " " + number_in_words(rest);
  };
  if (number < 20) return std::string(kSmall[static_cast<std::size_t>(number)]);
  if (number < 100)
    return with_rest(std::string(kTens[static_cast<std::size_t>(number / 10)]), number % 10);
  if (number < 1000) return with_rest(number_in_words(number / 100) + " hundred", number % 100);
  return with_rest(number_in_words(number / 1000) + " thousand", number % 1000);
}

std::string digits_in_words(const std::string& digits) {
  std::string words;
  for (const char digit : digits)
    words += (words.empty() ? "" : " ") + number_in_words(digit - '0');
  return words;
}

std::string random_digits(Random& rng, std::uint64_t at_least) {
  std::string digits;
  for (std::uint64_t n = at_least + rng.below(6 - at_least); n > 0; --n)
    digits += static_cast<char>('0' + rng.below(10));
  return digits;
}

std::string random_text(Random& rng) {
  if (rng.below(2) == 1) return digits_in_words(random_digits(rng, 1));
  static constexpr std::array<int, 4> kLimits = {10, 100, 1000, 10000};
  return number_in_words(
      static_cast<int>(rng.below(static_cast<std::uint64_t>(kLimits[rng.below(4)]))));
}

}  // namespace tutti::recipes
