#include "tutti/speech/text/cleaners.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {
namespace {

struct CharRange {
  char32_t first, last;
};
// Every `step`-th character of [first, last] moves by `delta`.
struct CaseRange {
  char32_t first, last;
  int step, delta;
};
#include "tutti/speech/text/unicode_tables.inc"

template <class Range, std::size_t N>
const Range* find_range(const Range (&ranges)[N], char32_t c) {
  const Range* it =
      std::upper_bound(std::begin(ranges), std::end(ranges), c,
                       [](char32_t x, const Range& range) { return x < range.first; });
  if (it == std::begin(ranges)) return nullptr;
  --it;
  return c <= it->last ? it : nullptr;
}

template <std::size_t N>
std::string convert_case(std::string_view text, const CaseRange (&ranges)[N]) {
  std::u32string out = to_utf32(text);
  for (char32_t& c : out) {
    const CaseRange* range = find_range(ranges, c);
    if (range != nullptr && (c - range->first) % static_cast<char32_t>(range->step) == 0)
      c = static_cast<char32_t>(static_cast<int>(c) + range->delta);
  }
  return to_utf8(out);
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::string remove_punctuation(std::string_view text) {
  std::u32string out;
  for (char32_t c : to_utf32(text)) {
    const bool apostrophe = c == U'\'' || c == 0x2019;
    if (apostrophe) {
      out.push_back(U'\'');
    } else if (!is_mark_symbol_or_punctuation(c)) {
      out.push_back(c);
    }
  }
  return collapse_whitespace(to_utf8(out));
}

// Drops everything from one of `opening` to the next of `closing`, both included; an unclosed or
// (when `min_inside` is 1) empty one stays.
std::u32string drop_enclosed(const std::u32string& text, std::u32string_view opening,
                             std::u32string_view closing, std::size_t min_inside) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (opening.find(text[i]) != opening.npos) {
      const std::size_t end = text.find_first_of(closing, i + 1 + min_inside);
      const bool empty =
          min_inside > 0 && i + 1 < text.size() && closing.find(text[i + 1]) != closing.npos;
      if (end != text.npos && !empty) {
        i = end;
        continue;
      }
    }
    out.push_back(text[i]);
  }
  return out;
}

std::string whisper_basic(std::string_view text) {
  std::u32string out = to_utf32(to_lower(text));
  out = drop_enclosed(out, U"<[", U">]", 0);
  out = drop_enclosed(out, U"(", U")", 1);
  for (char32_t& c : out) {
    if (c >= 0xFF01 && c <= 0xFF5E) c -= 0xFEE0;
    if (is_space(c) || is_mark_symbol_or_punctuation(c)) c = U' ';
  }
  return collapse_whitespace(to_lower(to_utf8(out)));
}

std::string tacotron(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> kAbbreviations[] = {
      {"mrs", "misess"},   {"mr", "mister"},    {"dr", "doctor"},     {"st", "saint"},
      {"co", "company"},   {"jr", "junior"},    {"maj", "major"},     {"gen", "general"},
      {"drs", "doctors"},  {"rev", "reverend"}, {"lt", "lieutenant"}, {"hon", "honorable"},
      {"sgt", "sergeant"}, {"capt", "captain"}, {"esq", "esquire"},   {"ltd", "limited"},
      {"col", "colonel"},  {"ft", "fort"}};
  const std::string lower = to_lower(text);
  std::string out;
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || (c & 0x80) != 0;
  };
  for (std::size_t i = 0; i < lower.size();) {
    if (is_word(lower[i]) && (i == 0 || !is_word(lower[i - 1]))) {
      std::size_t end = i;
      while (end < lower.size() && is_word(lower[end])) ++end;
      const std::string_view word = std::string_view(lower).substr(i, end - i);
      const auto* it = std::find_if(std::begin(kAbbreviations), std::end(kAbbreviations),
                                    [&](const auto& entry) { return entry.first == word; });
      if (end < lower.size() && lower[end] == '.' && it != std::end(kAbbreviations)) {
        out += it->second;
        i = end + 1;
      } else {
        out += word;
        i = end;
      }
      continue;
    }
    const char c = lower[i++];
    if (c == '&') {
      out += " and ";
    } else if (c == ';') {
      out += ',';
    } else if (c == '-' || c == ':') {
      out += c == '-' ? ' ' : ',';
    } else if (std::string_view("()[]<>\"").find(c) == std::string_view::npos) {
      out += c;
    }
  }
  return collapse_whitespace(to_upper(out));
}

}  // namespace

bool is_mark_symbol_or_punctuation(char32_t c) noexcept {
  return find_range(kMarksSymbolsPunctuation, c) != nullptr;
}

std::string to_lower(std::string_view text) { return convert_case(text, kToLower); }
std::string to_upper(std::string_view text) { return convert_case(text, kToUpper); }

std::string collapse_whitespace(std::string_view text) {
  std::u32string out;
  for (char32_t c : to_utf32(text)) {
    if (!is_space(c)) {
      out.push_back(c);
    } else if (!out.empty() && out.back() != U' ') {
      out.push_back(U' ');
    }
  }
  if (!out.empty() && out.back() == U' ') out.pop_back();
  return to_utf8(out);
}

TextCleaner::TextCleaner(const std::vector<std::string>& names) {
  static const std::pair<std::string, std::string (*)(std::string_view)> kSteps[] = {
      {"lower", to_lower},
      {"upper", to_upper},
      {"remove_punctuation", remove_punctuation},
      {"collapse_whitespace", collapse_whitespace},
      {"whisper_basic", whisper_basic},
      {"tacotron", tacotron}};
  for (const std::string& name : names) {
    const auto* it = std::find_if(std::begin(kSteps), std::end(kSteps),
                                  [&](const auto& step) { return step.first == name; });
    if (it == std::end(kSteps)) {
      std::vector<std::string> known;
      for (const auto& step : kSteps) known.push_back(step.first);
      const std::string guess = closest_match(name, known);
      throw ConfigError(
          fmt::format("clean_types: got '{}', expected one of {}", name, join(known, ", ")),
          guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
    }
    steps_.push_back(it->second);
  }
}

std::string TextCleaner::operator()(std::string_view text) const {
  std::string out(text);
  for (auto step : steps_) out = step(out);
  return out;
}

}  // namespace tutti::speech
