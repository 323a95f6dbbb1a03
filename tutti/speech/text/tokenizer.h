// Text to pieces and back, whatever the kind of piece.
//
//   auto tokenizer = make_tokenizer({.token_type = "bpe", .bpemodel = "exp/bpe.model"});
//   tokenizer->pieces("hello world");                  // {"▁he", "llo", "▁world"}
//   tokenizer->text({"▁he", "llo", "▁world"});         // "hello world"
//
// Pieces are strings, ids belong to a TokenList (token_list.h) and TextCodec joins the two: a
// sentencepiece model numbers its pieces differently from the model that was trained on them.
// All tokenizers are immutable; const calls are safe from any number of threads.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::speech {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<std::string> pieces(std::string_view text) const = 0;
  virtual std::string text(const std::vector<std::string>& pieces) const = 0;
};

// The tokenizer keys of an ESPnet training file.
struct TokenizerConfig {
  std::string token_type = "bpe";  // bpe, char or word; bpe is any sentencepiece model
  std::filesystem::path bpemodel;  // bpe only
  std::vector<std::string> non_linguistic_symbols;  // char and word: never split
  bool remove_non_linguistic_symbols = false;       // char and word: drop them instead
  std::string space_symbol = "<space>";             // char: how a space is written
  std::string delimiter;                            // word: empty splits at white space
};

// Throws ConfigError for an unknown token_type or a missing bpemodel, DataError for a bad one.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config);

// One piece per character; symbols in angle brackets and the like stay whole when listed.
class CharTokenizer : public Tokenizer {
 public:
  explicit CharTokenizer(const TokenizerConfig& config = {});
  std::vector<std::string> pieces(std::string_view text) const override;
  std::string text(const std::vector<std::string>& pieces) const override;

 private:
  std::vector<std::string> symbols_;  // longest first, so that the choice does not depend on order
  bool remove_symbols_;
  std::string space_symbol_;
};

class WordTokenizer : public Tokenizer {
 public:
  explicit WordTokenizer(const TokenizerConfig& config = {});
  std::vector<std::string> pieces(std::string_view text) const override;
  std::string text(const std::vector<std::string>& pieces) const override;

 private:
  std::vector<std::string> symbols_;
  bool remove_symbols_;
  std::string delimiter_;
};

}  // namespace tutti::speech
