// Text clean-up before scoring or training, by name and in order.
//
//   TextCleaner clean({"whisper_basic"});
//   clean("Hello [noise], World!");   // "hello world"
//
// | name               | does |
// |--------------------|------|
// | lower, upper       | Unicode case, one character to one |
// | remove_punctuation | drops punctuation except the apostrophe, then collapse_whitespace |
// | collapse_whitespace| one space between words, none at the ends |
// | whisper_basic      | lower; drops <...>, [...], (...); marks, symbols, punctuation to spaces; collapse |
// | tacotron           | lower; & and abbreviations as words; ; - to , and space; drops ()[]<>"; upper; collapse |
//
// whisper_basic folds full-width forms (U+FF01..U+FF5E, U+3000) but not the rest of NFKC; tacotron
// leaves digits alone. Names that ESPnet has and we do not (jaconv, vietnamese, korean_cleaner,
// whisper_en) are a ConfigError that says so, never ignored. Immutable, thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::speech {

class TextCleaner {
 public:
  TextCleaner() = default;
  explicit TextCleaner(const std::vector<std::string>& names);
  std::string operator()(std::string_view text) const;

 private:
  std::vector<std::string (*)(std::string_view)> steps_;
};

std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);
std::string collapse_whitespace(std::string_view text);
// A mark, symbol or punctuation character (Unicode categories M, S, P).
bool is_mark_symbol_or_punctuation(char32_t c) noexcept;

}  // namespace tutti::speech
