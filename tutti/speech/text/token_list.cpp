#include "tutti/speech/text/token_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::speech {

TokenList::TokenList(std::vector<std::string> tokens, const std::string& name)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto [it, fresh] = ids_.emplace(tokens_[i], static_cast<int>(i));
    if (!fresh)
      throw DataError(fmt::format("{}:{}: token '{}' is already on line {}", name, i + 1,
                                  tokens_[i], it->second + 1),
                      "every token must be there once");
  }
  unk_ = find(kUnknown);
}

TokenList TokenList::read(const std::filesystem::path& path) {
  std::string content = read_file(path);
  std::vector<std::string> lines = split(content, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (std::string& line : lines)
    if (line.ends_with('\r')) line.pop_back();
  if (lines.empty())
    throw DataError(path.string() + ": empty token list", "expected one token per line");
  return TokenList(std::move(lines), path.string());
}

void TokenList::write(const std::filesystem::path& path) const {
  write_file_atomic(path, join(tokens_, "\n") + "\n");
}

const std::string& TokenList::token(int id) const {
  if (id < 0 || id >= size())
    throw DataError(fmt::format("token id {} is outside the token list of {} tokens", id, size()),
                    "use the token list the model was trained with");
  return tokens_[static_cast<std::size_t>(id)];
}

int TokenList::find(std::string_view token) const noexcept {
  const auto it = ids_.find(std::string(token));
  return it == ids_.end() ? -1 : it->second;
}

int TokenList::id(std::string_view token) const {
  const int found = find(token);
  if (found >= 0) return found;
  if (unk_ < 0)
    throw DataError(
        fmt::format("token '{}' is not in the token list, which has no <unk> either", token));
  return unk_;
}

std::vector<int> TokenList::ids(const std::vector<std::string>& pieces) const {
  std::vector<int> out;
  out.reserve(pieces.size());
  for (const std::string& piece : pieces) out.push_back(id(piece));
  return out;
}

std::vector<std::string> TokenList::pieces(const std::vector<int>& ids) const {
  std::vector<std::string> out;
  out.reserve(ids.size());
  for (int id : ids) out.push_back(token(id));
  return out;
}

TextCodec::Encoded TextCodec::encode(std::string_view text) const {
  Encoded out{tokenizer_->pieces(text), {}};
  out.ids = tokens_.ids(out.pieces);
  return out;
}

std::string TextCodec::decode(const std::vector<int>& ids) const {
  return tokenizer_->text(tokens_.pieces(ids));
}

TokenList build_token_list(const std::vector<std::string>& lines, const Tokenizer& tokenizer,
                           int cutoff) {
  std::unordered_map<std::string, std::size_t> index;
  std::vector<std::pair<std::string, long>> counts;
  for (const std::string& line : lines) {
    for (std::string& piece : tokenizer.pieces(line)) {
      const auto [it, fresh] = index.emplace(piece, counts.size());
      if (fresh) counts.emplace_back(std::move(piece), 0);
      ++counts[it->second].second;
    }
  }
  std::stable_sort(counts.begin(), counts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> tokens{std::string(kBlank), std::string(kUnknown)};
  for (auto& [piece, count] : counts) {
    const bool special = piece == kBlank || piece == kUnknown || piece == kSosEos;
    if (count > cutoff && !special) tokens.push_back(std::move(piece));
  }
  tokens.emplace_back(kSosEos);
  return TokenList(std::move(tokens));
}

}  // namespace tutti::speech
