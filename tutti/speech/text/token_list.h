// The tokens a model was trained on, in the order of its output units.
//
//   TokenList tokens = TokenList::read("exp/tokens.txt");   // <blank>, <unk>, ..., <sos/eos>
//   tokens.id("▁the");      // 5; the id of <unk> for a token that is not in the list
//   tokens.token(5);        // "▁the"
//
// One token per line, exactly as written (a token may be a space). Immutable after construction.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/speech/text/tokenizer.h"

namespace tutti::speech {

inline constexpr std::string_view kBlank = "<blank>";
inline constexpr std::string_view kUnknown = "<unk>";
inline constexpr std::string_view kSosEos = "<sos/eos>";

class TokenList {
 public:
  TokenList() = default;
  // Throws DataError when a token is there twice (`name` is for the message).
  explicit TokenList(std::vector<std::string> tokens, const std::string& name = "token list");
  static TokenList read(const std::filesystem::path& path);
  void write(const std::filesystem::path& path) const;

  int size() const noexcept { return static_cast<int>(tokens_.size()); }
  const std::vector<std::string>& tokens() const noexcept { return tokens_; }
  // Throws DataError for an id outside the list.
  const std::string& token(int id) const;
  // -1 when the token is not there.
  int find(std::string_view token) const noexcept;
  // Falls back to <unk>; throws DataError when the list has none.
  int id(std::string_view token) const;

  std::vector<int> ids(const std::vector<std::string>& pieces) const;
  std::vector<std::string> pieces(const std::vector<int>& ids) const;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int> ids_;
  int unk_ = -1;
};

// A tokenizer and a token list together: what training and decoding use.
class TextCodec {
 public:
  struct Encoded {
    std::vector<std::string> pieces;
    std::vector<int> ids;
  };
  TextCodec(TokenList tokens, std::unique_ptr<Tokenizer> tokenizer)
      : tokens_(std::move(tokens)), tokenizer_(std::move(tokenizer)) {}

  Encoded encode(std::string_view text) const;
  std::string decode(const std::vector<int>& ids) const;
  const TokenList& tokens() const noexcept { return tokens_; }
  const Tokenizer& tokenizer() const noexcept { return *tokenizer_; }

 private:
  TokenList tokens_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// The tokens of a text corpus for char and word models: <blank>, <unk>, the pieces by falling count
// (equal counts in order of appearance), <sos/eos>. `cutoff` drops pieces seen at most that often.
TokenList build_token_list(const std::vector<std::string>& lines, const Tokenizer& tokenizer,
                           int cutoff = 0);

}  // namespace tutti::speech
