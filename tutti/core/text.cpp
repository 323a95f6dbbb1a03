#include "tutti/core/text.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "tutti/core/error.h"

namespace tutti {
namespace {
bool is_space(char c) noexcept {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const std::size_t cost = lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}
}  // namespace

std::string_view trim(std::string_view text) noexcept {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size();) {
    if (is_space(text[i])) {
      ++i;
      continue;
    }
    const std::size_t begin = i;
    while (i < text.size() && !is_space(text[i])) ++i;
    words.emplace_back(text.substr(begin, i - begin));
  }
  return words;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += parts[i];
  }
  return joined;
}

std::string shell_quote(std::string_view word) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool is_utf8(std::string_view bytes) noexcept {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto first = static_cast<std::uint8_t>(bytes[i++]);
    if (first < 0x80) continue;
    const int more = first >= 0xC2 && first < 0xE0   ? 1
                     : first >= 0xE0 && first < 0xF0 ? 2
                     : first >= 0xF0 && first < 0xF5 ? 3
                                                     : 0;
    if (more == 0) return false;
    for (int k = 0; k < more; ++k, ++i) {
      if (i == bytes.size()) return false;
      const auto next = static_cast<std::uint8_t>(bytes[i]);
      // The second byte rules out long forms, surrogates and what lies above the last character.
      const int low = k > 0 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
      const int high = k > 0 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
      if (next < low || next > high) return false;
    }
  }
  return true;
}

namespace {
constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
}

std::string base64_encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<std::uint8_t>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k)
      out.push_back(i + k <= bytes.size() ? kBase64[group >> (18 - 6 * k) & 63] : '=');
  }
  return out;
}

std::string base64_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  std::uint32_t group = 0;
  int bits = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const auto value = kBase64.find(c);
    if (value == kBase64.npos) throw DataError("not base64: '" + std::string(1, c) + "'");
    group = group << 6 | static_cast<std::uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out.push_back(static_cast<char>(group >> bits));
  }
  return out;
}

std::string closest_match(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > 200) return {};
  std::string best;
  // Of one or two letters hardly anything is left after a slip: they must begin alike.
  const bool is_short = word.size() < 3;
  std::size_t best_distance = (is_short ? 1 : word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    if (candidate.size() > word.size() + best_distance ||
        word.size() > candidate.size() + best_distance)
      continue;
    const std::size_t distance = edit_distance(word, candidate);
    const std::size_t shorter = std::min(word.size(), candidate.size());
    if (is_short && edit_distance(word.substr(0, shorter), candidate.substr(0, shorter)) > 0)
      continue;
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace tutti
