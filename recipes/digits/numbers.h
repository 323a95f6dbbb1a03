// English number words, for corpora of spoken numbers.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/core/random.h"

namespace tutti::recipes {

// 342 -> "three hundred forty two". REQUIRES: 0 <= number < 1,000,000.
std::string number_in_words(int number);
// "407" -> "four zero seven"
std::string digits_in_words(const std::string& digits);

// Up to five digits.
std::string random_digits(Random& rng, std::uint64_t at_least);
// Half plain numbers of up to four digits, half digit strings; in words.
std::string random_text(Random& rng);

}  // namespace tutti::recipes
