// UTF-8 by hand: one code point at a time, never reading past the end, bad bytes never fatal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::speech {

struct CodePoint {
  char32_t value = 0xFFFD;  // U+FFFD where the bytes are not UTF-8
  std::size_t size = 1;     // bytes taken; 1 for a bad byte
  bool valid = false;
};

// The first code point of `text`. Overlong forms, surrogates and truncated sequences are invalid.
// REQUIRES: text is not empty.
CodePoint first_code_point(std::string_view text) noexcept;
void append_utf8(std::string& out, char32_t code_point);
// "añ" -> {"a", "ñ"}; a bad byte is a character of its own.
std::vector<std::string> split_characters(std::string_view text);
std::u32string to_utf32(std::string_view text);
std::string to_utf8(std::u32string_view text);

}  // namespace tutti::speech
