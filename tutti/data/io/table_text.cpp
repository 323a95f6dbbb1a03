#include "tutti/data/io/table_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::data {
namespace {
constexpr std::string_view kBlank = " \t\r\f\v";
}  // namespace

void for_each_row(std::string_view text, const std::string& file,
                  const std::function<void(const Row&)>& take) {
  std::size_t line_number = 0;
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  while (!text.empty()) {
    ++line_number;
    const std::size_t newline = text.find('\n');
    const std::string_view line = trim(text.substr(0, newline));
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.empty()) continue;
    if (line.find('\0') != std::string_view::npos)
      throw DataError(
          fmt::format("{}:{}: a NUL byte: this is not a text table", file, line_number));
    const std::size_t key_end = line.find_first_of(kBlank);
    const bool bare = key_end == std::string_view::npos;
    take({line.substr(0, key_end), bare ? std::string_view{} : trim(line.substr(key_end)),
          line_number});
  }
}

double parse_number(std::string_view text, const std::string& where) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    throw DataError(fmt::format("{}: got '{}', expected a number", where, text));
  return value;
}

std::uint64_t parse_count(std::string_view text, const std::string& where) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size())
    throw DataError(fmt::format("{}: got '{}', expected a whole number", where, text));
  return value;
}

Segment parse_segment(const Row& row, const std::string& file) {
  const std::string where = fmt::format("{}:{}: {}", file, row.line, row.key);
  const auto words = split_words(row.value);
  if (words.size() != 3)
    throw DataError(
        fmt::format("{}: got {} columns, expected `<utt> <recording> <begin s> <end s>`", where,
                    words.size() + 1));
  Segment segment;
  segment.recording = row.value.substr(0, words[0].size());
  segment.begin_s = parse_number(words[1], where);
  segment.end_s = parse_number(words[2], where);
  const bool to_end = segment.end_s == -1;
  if (segment.begin_s < 0 || (!to_end && segment.end_s <= segment.begin_s))
    throw DataError(fmt::format("{}: got begin {} and end {}, expected 0 <= begin < end (seconds)",
                                where, words[1], words[2]));
  return segment;
}

}  // namespace tutti::data
