// Text normalisation as a sentencepiece model asks for it: character map, white space, dummy
// prefix.
//
//   PieceNormalizer normalize(file.normalizer, file.treat_whitespace_as_suffix, "bpe.model");
//   normalize("Ｈｅｌｌｏ  world")   // "▁Hello▁world" with NFKC rules
//
// Immutable after construction; safe to share between threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/speech/text/byte_trie.h"
#include "tutti/speech/text/sentencepiece_file.h"

namespace tutti::speech {

inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

// The `precompiled_charsmap` of a model: a Darts double-array trie of source strings whose values
// point into a block of zero-terminated replacements. Every index read from the blob is checked, so
// that a damaged file cannot lead outside it.
class CharsMap {
 public:
  CharsMap() = default;
  // Throws DataError when the sizes in the blob do not fit. `name` is for the message.
  CharsMap(std::string_view blob, const std::string& name);

  // The longest rule that begins `text`: {replacement, bytes of text}; size 0 when there is none.
  std::pair<std::string_view, std::size_t> longest_match(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

class PieceNormalizer {
 public:
  PieceNormalizer(const NormalizerSpec& spec, bool whitespace_as_suffix, const std::string& name);
  // `user_defined` pieces pass through unchanged; it must outlive this object. May be null.
  void keep_user_defined(const ByteTrie* user_defined) { user_defined_ = user_defined; }

  std::string operator()(std::string_view text) const;

 private:
  // The normal form of the first character (or rule) of `text` and the bytes it covers.
  std::pair<std::string_view, std::size_t> normalize_first(std::string_view text) const;

  CharsMap charsmap_;
  bool add_dummy_prefix_;
  bool remove_extra_whitespaces_;
  bool escape_whitespaces_;
  bool whitespace_as_suffix_;
  const ByteTrie* user_defined_ = nullptr;
};

}  // namespace tutti::speech
