// Small text tools that several rooms need.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

std::string_view trim(std::string_view text) noexcept;
// Splits at every `separator`; empty fields are kept, so "a,,b" has three.
std::vector<std::string> split(std::string_view text, char separator);
// Splits at runs of white space; no empty fields.
std::vector<std::string> split_words(std::string_view text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// Quotes one word for a POSIX shell; plain words stay as they are.
std::string shell_quote(std::string_view word);
bool is_utf8(std::string_view bytes) noexcept;
std::string base64_encode(std::string_view bytes);
// Throws DataError when it is none.
std::string base64_decode(std::string_view text);
// The candidate closest to `word` (Damerau-Levenshtein, case-blind), or "" when none is close
// enough to be a slip of the finger: at most a third of the letters differ. For "did you mean" in
// errors.
std::string closest_match(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tutti
