// English number words, for corpora of spoken numbers.
#pragma once

#include <string>

namespace tutti::recipes {

// 342 -> "three hundred forty two". REQUIRES: 0 <= number < 1,000,000.
std::string number_in_words(int number);
// "407" -> "four zero seven"
std::string digits_in_words(const std::string& digits);

}  // namespace tutti::recipes
