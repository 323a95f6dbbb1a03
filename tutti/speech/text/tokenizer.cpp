#include "tutti/speech/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/sentencepiece.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {

CharTokenizer::CharTokenizer(const TokenizerConfig& config)
    : symbols_(config.non_linguistic_symbols),
      remove_symbols_(config.remove_non_linguistic_symbols),
      space_symbol_(config.space_symbol) {
  std::erase(symbols_, std::string());
  std::stable_sort(symbols_.begin(), symbols_.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

std::vector<std::string> CharTokenizer::pieces(std::string_view text) const {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto symbol = std::find_if(symbols_.begin(), symbols_.end(),
                                     [&](const auto& s) { return text.starts_with(s); });
    if (symbol != symbols_.end()) {
      if (!remove_symbols_) out.push_back(*symbol);
      text.remove_prefix(symbol->size());
      continue;
    }
    const std::size_t size = first_code_point(text).size;
    out.push_back(text[0] == ' ' ? space_symbol_ : std::string(text.substr(0, size)));
    text.remove_prefix(size);
  }
  return out;
}

std::string CharTokenizer::text(const std::vector<std::string>& pieces) const {
  std::string out;
  for (const std::string& piece : pieces) out += piece == space_symbol_ ? " " : piece;
  return out;
}

WordTokenizer::WordTokenizer(const TokenizerConfig& config)
    : symbols_(config.non_linguistic_symbols),
      remove_symbols_(config.remove_non_linguistic_symbols),
      delimiter_(config.delimiter) {
  if (delimiter_.size() > 1)
    throw ConfigError(fmt::format("delimiter: got '{}', expected one character", delimiter_));
}

std::vector<std::string> WordTokenizer::pieces(std::string_view text) const {
  std::vector<std::string> words =
      delimiter_.empty() ? split_words(text) : split(text, delimiter_[0]);
  if (remove_symbols_) {
    std::erase_if(words, [&](const std::string& word) {
      return std::find(symbols_.begin(), symbols_.end(), word) != symbols_.end();
    });
  }
  return words;
}

std::string WordTokenizer::text(const std::vector<std::string>& pieces) const {
  return join(pieces, delimiter_.empty() ? " " : delimiter_);
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config) {
  if (config.token_type == "char") return std::make_unique<CharTokenizer>(config);
  if (config.token_type == "word") return std::make_unique<WordTokenizer>(config);
  if (config.token_type == "bpe") {
    if (config.bpemodel.empty())
      throw ConfigError("bpemodel: got nothing, expected a sentencepiece .model file",
                        "set bpemodel, or use token_type: char or word");
    return std::make_unique<SentencePieceTokenizer>(config.bpemodel);
  }
  const std::string guess = closest_match(config.token_type, {"bpe", "char", "word"});
  throw ConfigError(
      fmt::format("token_type: got '{}', expected bpe, char or word", config.token_type),
      guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
}

}  // namespace tutti::speech
