#include "tutti/speech/text/normalizer.h"

#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {
namespace {

std::uint32_t little_endian_32(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The four parts packed into one 32-bit unit of a Darts double array.
bool has_leaf(std::uint32_t unit) { return ((unit >> 8) & 1) != 0; }
std::uint32_t leaf_value(std::uint32_t unit) { return unit & 0x7FFFFFFFu; }
std::uint32_t label_of(std::uint32_t unit) { return unit & (0x80000000u | 0xFFu); }
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

bool consume_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

CharsMap::CharsMap(std::string_view blob, const std::string& name) {
  if (blob.empty()) return;
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: broken precompiled_charsmap: {}", name, what));
  };
  if (blob.size() <= 4) fail(fmt::format("{} bytes", blob.size()));
  const std::size_t trie_size = little_endian_32(blob);
  blob.remove_prefix(4);
  if (trie_size > blob.size() || trie_size % 4 != 0 || trie_size == 0)
    fail(fmt::format("a trie of {} bytes in a map of {}", trie_size, blob.size()));
  units_.reserve(trie_size / 4);
  for (std::size_t i = 0; i < trie_size; i += 4) units_.push_back(little_endian_32(blob.substr(i)));
  replacements_ = std::string(blob.substr(trie_size));
}

std::pair<std::string_view, std::size_t> CharsMap::longest_match(std::string_view text) const {
  if (units_.empty()) return {};
  std::size_t longest = 0;
  std::uint32_t value = 0;
  std::uint32_t position = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    position ^= byte;
    if (position >= units_.size() || label_of(units_[position]) != byte) break;
    const std::uint32_t unit = units_[position];
    position ^= offset_of(unit);
    if (has_leaf(unit)) {
      if (position >= units_.size()) break;
      longest = i + 1;
      value = leaf_value(units_[position]);
    }
  }
  if (longest == 0 || value >= replacements_.size()) return {};
  // c_str() ends in a zero even when the blob does not.
  return {std::string_view(replacements_.c_str() + value), longest};
}

PieceNormalizer::PieceNormalizer(const NormalizerSpec& spec, bool whitespace_as_suffix,
                                 const std::string& name)
    : charsmap_(spec.precompiled_charsmap, name),
      add_dummy_prefix_(spec.add_dummy_prefix),
      remove_extra_whitespaces_(spec.remove_extra_whitespaces),
      escape_whitespaces_(spec.escape_whitespaces),
      whitespace_as_suffix_(whitespace_as_suffix) {}

std::pair<std::string_view, std::size_t> PieceNormalizer::normalize_first(
    std::string_view text) const {
  if (user_defined_ != nullptr) {
    const std::size_t kept = user_defined_->longest_prefix(text);
    if (kept > 0) return {text.substr(0, kept), kept};
  }
  const auto match = charsmap_.longest_match(text);
  if (match.second > 0) return match;
  const CodePoint c = first_code_point(text);
  if (!c.valid) return {"\xEF\xBF\xBD", 1};
  return {text.substr(0, c.size), c.size};
}

std::string PieceNormalizer::operator()(std::string_view text) const {
  std::string out;
  if (remove_extra_whitespaces_) {
    while (!text.empty()) {
      const auto [normal, size] = normalize_first(text);
      if (normal != " ") break;
      text.remove_prefix(size);
    }
  }
  if (text.empty()) return out;
  const std::string_view space = escape_whitespaces_ ? kSpaceSymbol : std::string_view(" ");
  out.reserve(text.size() * 2);
  if (add_dummy_prefix_ && !whitespace_as_suffix_) out += space;

  bool after_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    auto [normal, size] = normalize_first(text);
    while (after_space && consume_prefix(normal, " ")) {
    }
    for (char c : normal) {
      if (c == ' ') {
        out += space;
      } else {
        out += c;
      }
    }
    // A rule that maps to nothing leaves the state as it was.
    if (!normal.empty()) after_space = normal.back() == ' ';
    if (!remove_extra_whitespaces_) after_space = false;
    text.remove_prefix(size);
  }
  if (remove_extra_whitespaces_) {
    while (std::string_view(out).ends_with(space)) out.erase(out.size() - space.size());
  }
  if (add_dummy_prefix_ && whitespace_as_suffix_) out += space;
  return out;
}

}  // namespace tutti::speech
