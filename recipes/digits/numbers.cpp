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

}  // namespace tutti::recipes
