#include "tutti/speech/text/sentencepiece.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <functional>
#include <queue>

#include "tutti/speech/text/utf8.h"

namespace tutti::speech {
namespace {

constexpr float kUnknownPenalty = 10.0f;

// Length of a character judged by its first byte alone: what sentencepiece steps by.
std::size_t character_size(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(size, text.size());
}

std::string replace_space_symbols(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    if (piece.starts_with(kSpaceSymbol)) {
      out += ' ';
      piece.remove_prefix(kSpaceSymbol.size());
    } else {
      out += piece[0];
      piece.remove_prefix(1);
    }
  }
  return out;
}

// Bytes to text; every byte that is not part of a character becomes U+FFFD.
void append_bytes(std::string& out, std::string& bytes) {
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const CodePoint c = first_code_point(rest);
    append_utf8(out, c.value);
    rest.remove_prefix(c.size);
  }
  bytes.clear();
}

}  // namespace

int byte_of_piece(std::string_view piece) noexcept {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int value = 0;
  for (char c : piece.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string piece_of_byte(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

SentencePieceTokenizer::SentencePieceTokenizer(const std::filesystem::path& path)
    : SentencePieceTokenizer(read_sentencepiece_file(path), path.string()) {}

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceFile file, const std::string& name)
    : file_(std::move(file)),
      normalizer_(file_.normalizer, file_.treat_whitespace_as_suffix, name),
      denormalizer_(file_.denormalizer, false, name) {
  std::vector<std::pair<std::string_view, int>> normal, user_defined;
  float min_score = FLT_MAX;
  // FLT_MIN, not -FLT_MAX: sentencepiece floors the largest score just above zero.
  max_score_ = FLT_MIN;
  for (int id = 0; id < num_pieces(); ++id) {
    const Piece& p = file_.pieces[static_cast<std::size_t>(id)];
    const bool reserved = p.type == PieceType::kUnknown || p.type == PieceType::kControl ||
                          p.type == PieceType::kByte;
    (reserved ? reserved_ids_ : normal_ids_).emplace(p.text, id);
    if (!reserved) normal.emplace_back(p.text, id);
    if (p.type == PieceType::kUserDefined) user_defined.emplace_back(p.text, id);
    if (p.type == PieceType::kNormal) {
      min_score = std::min(min_score, p.score);
      max_score_ = std::max(max_score_, p.score);
    }
  }
  unknown_score_ = min_score - kUnknownPenalty;
  if (file_.model == PieceModel::kUnigram) trie_ = ByteTrie(std::move(normal));
  user_defined_ = ByteTrie(std::move(user_defined));
  normalizer_.keep_user_defined(&user_defined_);
}

int SentencePieceTokenizer::id_of(std::string_view piece) const {
  if (const auto it = reserved_ids_.find(piece); it != reserved_ids_.end()) return it->second;
  if (const auto it = normal_ids_.find(piece); it != normal_ids_.end()) return it->second;
  return file_.unk_id;
}

std::size_t SentencePieceTokenizer::first_symbol(std::string_view text, bool& user_defined) const {
  const std::size_t size = user_defined_.longest_prefix(text);
  user_defined = size > 0;
  return user_defined ? size : character_size(text);
}

std::vector<SentencePieceTokenizer::Segment> SentencePieceTokenizer::encode_unigram(
    std::string_view normalized) const {
  struct Best {
    float score = 0;
    int id = -1;
    std::ptrdiff_t begin = -1;  // -1: nothing ends here yet
  };
  std::vector<Best> best(normalized.size() + 1);
  // The sum is compared before it is rounded to float and kept after: ties then fall as they do in
  // sentencepiece.
  const auto offer = [&](std::size_t end, std::size_t begin, int id, double score) {
    Best& at = best[end];
    if (at.begin == -1 || score > at.score)
      at = {static_cast<float>(score), id, static_cast<std::ptrdiff_t>(begin)};
  };
  for (std::size_t begin = 0; begin < normalized.size();) {
    const std::string_view rest = normalized.substr(begin);
    const float so_far = best[begin].score;
    const std::size_t one = character_size(rest);
    bool has_single = false;
    trie_.for_each_prefix(rest, [&](std::size_t length, int id) {
      const PieceType type = type_of(id);
      if (type == PieceType::kUnused) return;
      // A bonus makes sure that a user-defined piece is always taken.
      const double score = type == PieceType::kUserDefined
                               ? static_cast<float>(length) * max_score_ - 0.1
                               : double{file_.pieces[static_cast<std::size_t>(id)].score};
      offer(begin + length, begin, id, score + so_far);
      has_single = has_single || length == one;
    });
    if (!has_single) offer(begin + one, begin, file_.unk_id, unknown_score_ + so_far);
    begin += one;
  }
  std::vector<Segment> out;
  for (std::size_t end = normalized.size(); end > 0;) {
    const auto begin = static_cast<std::size_t>(best[end].begin);
    out.push_back({normalized.substr(begin, end - begin), best[end].id});
    end = begin;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<SentencePieceTokenizer::Segment> SentencePieceTokenizer::encode_bpe(
    std::string_view normalized) const {
  struct Symbol {
    int previous, next;
    bool frozen;
    std::string_view text;  // empty: merged into the symbol on its left
  };
  struct Merge {
    float score;
    int left, right;
    std::size_t size;
    bool operator<(const Merge& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  std::vector<Symbol> symbols;
  for (std::string_view rest = normalized; !rest.empty();) {
    bool frozen = false;
    const std::size_t size = first_symbol(rest, frozen);
    const int index = static_cast<int>(symbols.size());
    symbols.push_back({index - 1, index + 1, frozen, rest.substr(0, size)});
    rest.remove_prefix(size);
  }
  symbols.back().next = -1;

  std::priority_queue<Merge> agenda;
  // How a piece that must not be used was made, to take it apart again at the end.
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> parts;
  const auto add_pair = [&](int left, int right) {
    if (left == -1 || right == -1) return;
    const Symbol& l = symbols[static_cast<std::size_t>(left)];
    const Symbol& r = symbols[static_cast<std::size_t>(right)];
    if (l.frozen || r.frozen) return;
    const std::string_view merged(l.text.data(), l.text.size() + r.text.size());
    const auto it = normal_ids_.find(merged);
    if (it == normal_ids_.end()) return;
    agenda.push(
        {file_.pieces[static_cast<std::size_t>(it->second)].score, left, right, merged.size()});
    if (type_of(it->second) == PieceType::kUnused) parts[merged] = {l.text, r.text};
  };
  for (int i = 1; i < static_cast<int>(symbols.size()); ++i) add_pair(i - 1, i);
  while (!agenda.empty()) {
    const Merge top = agenda.top();
    agenda.pop();
    Symbol& left = symbols[static_cast<std::size_t>(top.left)];
    Symbol& right = symbols[static_cast<std::size_t>(top.right)];
    const bool stale =
        left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != top.size;
    if (stale) continue;
    left.text = std::string_view(left.text.data(), top.size);
    left.next = right.next;
    if (right.next >= 0) symbols[static_cast<std::size_t>(right.next)].previous = top.left;
    right.text = {};
    add_pair(left.previous, top.left);
    add_pair(top.left, left.next);
  }

  std::vector<Segment> out;
  // A stack instead of recursion: the depth is the file's, not ours.
  std::vector<std::string_view> pending;
  for (int i = 0; i != -1; i = symbols[static_cast<std::size_t>(i)].next) {
    pending.push_back(symbols[static_cast<std::size_t>(i)].text);
    while (!pending.empty()) {
      const std::string_view piece = pending.back();
      pending.pop_back();
      const int id = id_of(piece);
      const auto made_of = parts.find(piece);
      if (type_of(id) == PieceType::kUnused && made_of != parts.end()) {
        pending.push_back(made_of->second.second);
        pending.push_back(made_of->second.first);
      } else {
        out.push_back({piece, id});
      }
    }
  }
  return out;
}

std::vector<SentencePieceTokenizer::Segment> SentencePieceTokenizer::encode_words(
    std::string_view normalized) const {
  // A word begins at a space symbol, or ends after one when white space is a suffix.
  std::vector<Segment> out;
  std::size_t begin = 0;
  const auto close = [&](std::size_t end) {
    if (end > begin) {
      const std::string_view word = normalized.substr(begin, end - begin);
      out.push_back({word, id_of(word)});
    }
    begin = end;
  };
  for (std::size_t i = 0; i < normalized.size();) {
    const bool space = normalized.substr(i).starts_with(kSpaceSymbol);
    if (space && !file_.treat_whitespace_as_suffix) close(i);
    i += character_size(normalized.substr(i));
    if (space && file_.treat_whitespace_as_suffix) close(i);
  }
  close(normalized.size());
  return out;
}

std::vector<SentencePieceTokenizer::Segment> SentencePieceTokenizer::encode_characters(
    std::string_view normalized) const {
  std::vector<Segment> out;
  while (!normalized.empty()) {
    bool user_defined = false;
    const std::string_view symbol = normalized.substr(0, first_symbol(normalized, user_defined));
    out.push_back({symbol, id_of(symbol)});
    normalized.remove_prefix(symbol.size());
  }
  return out;
}

std::vector<std::string> SentencePieceTokenizer::pieces(std::string_view text) const {
  const std::string normalized = normalizer_(text);
  if (normalized.empty()) return {};
  std::vector<Segment> segments;
  switch (file_.model) {
    case PieceModel::kUnigram:
      segments = encode_unigram(normalized);
      break;
    case PieceModel::kBpe:
      segments = encode_bpe(normalized);
      break;
    case PieceModel::kWord:
      segments = encode_words(normalized);
      break;
    case PieceModel::kChar:
      segments = encode_characters(normalized);
      break;
  }
  std::vector<std::string> out;
  bool after_unknown = false;
  for (const Segment& segment : segments) {
    const bool unknown = type_of(segment.id) == PieceType::kUnknown;
    if (unknown && file_.byte_fallback) {
      for (char c : segment.text) out.push_back(piece_of_byte(static_cast<unsigned char>(c)));
    } else if (unknown && after_unknown) {
      out.back() += segment.text;
    } else {
      out.emplace_back(segment.text);
    }
    after_unknown = unknown;
  }
  return out;
}

std::string SentencePieceTokenizer::text(const std::vector<std::string>& pieces) const {
  std::string out;
  std::string bytes;  // a run of byte pieces
  bool at_start = true;
  bool consumed_space = false;
  for (const std::string& piece : pieces) {
    const int id = id_of(piece);
    const PieceType type = type_of(id);
    if (type == PieceType::kByte) {
      bytes.push_back(static_cast<char>(byte_of_piece(piece)));
      continue;
    }
    append_bytes(out, bytes);
    if (consumed_space || !out.empty()) at_start = false;
    consumed_space = false;
    if (type == PieceType::kControl) continue;
    if (type == PieceType::kUnknown) {
      out += piece == file_.pieces[static_cast<std::size_t>(id)].text ? file_.unk_surface : piece;
      continue;
    }
    std::string_view body = piece;
    const NormalizerSpec& spec = file_.normalizer;
    // The dummy prefix is taken off once; with remove_extra_whitespaces all leading space is.
    if (at_start && (spec.add_dummy_prefix || spec.remove_extra_whitespaces) &&
        body.starts_with(kSpaceSymbol)) {
      body.remove_prefix(kSpaceSymbol.size());
      consumed_space = !spec.remove_extra_whitespaces;
    }
    out += replace_space_symbols(body);
  }
  append_bytes(out, bytes);
  if (!file_.denormalizer.precompiled_charsmap.empty()) out = denormalizer_(out);
  return out;
}

}  // namespace tutti::speech
