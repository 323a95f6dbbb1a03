// Encoding and decoding with a sentencepiece model: the same pieces as `spm_encode`, the same text
// as `spm_decode`, without libsentencepiece (see sentencepiece_file.h for why).
//
//   SentencePieceTokenizer bpe("exp/bpe.model");
//   bpe.pieces("hello world");    // {"▁he", "llo", "▁world"}
//   bpe.text({"▁he", "llo"});     // "hello"
//
// Unigram models take the best path (Viterbi in single precision, the first found wins a tie, as
// sentencepiece does), BPE models merge by score and then from the left. Runs of unknown characters
// are one piece (their own text), or bytes `<0xE3>` when the model has byte_fallback.
// Immutable; const calls are safe from any number of threads.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/speech/text/byte_trie.h"
#include "tutti/speech/text/normalizer.h"
#include "tutti/speech/text/sentencepiece_file.h"
#include "tutti/speech/text/tokenizer.h"

namespace tutti::speech {

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& path);
  SentencePieceTokenizer(SentencePieceFile file, const std::string& name);
  // The tries hold views into the pieces.
  SentencePieceTokenizer(const SentencePieceTokenizer&) = delete;
  SentencePieceTokenizer& operator=(const SentencePieceTokenizer&) = delete;

  std::vector<std::string> pieces(std::string_view text) const override;
  std::string text(const std::vector<std::string>& pieces) const override;

  int num_pieces() const noexcept { return static_cast<int>(file_.pieces.size()); }
  const Piece& piece(int id) const { return file_.pieces.at(static_cast<std::size_t>(id)); }
  // The model's own number of a piece; that of the unknown piece when there is none.
  int id_of(std::string_view piece) const;
  std::string normalize(std::string_view text) const { return normalizer_(text); }

 private:
  struct Segment {
    std::string_view text;
    int id = 0;
  };
  std::vector<Segment> encode_unigram(std::string_view normalized) const;
  std::vector<Segment> encode_bpe(std::string_view normalized) const;
  std::vector<Segment> encode_words(std::string_view normalized) const;
  std::vector<Segment> encode_characters(std::string_view normalized) const;
  // Bytes of the first character, or of the user-defined piece that begins `text`.
  std::size_t first_symbol(std::string_view text, bool& user_defined) const;
  PieceType type_of(int id) const { return file_.pieces[static_cast<std::size_t>(id)].type; }

  const SentencePieceFile file_;
  std::unordered_map<std::string_view, int> normal_ids_;    // normal, user-defined, unused
  std::unordered_map<std::string_view, int> reserved_ids_;  // <unk>, control, bytes
  ByteTrie trie_;                                           // unigram: the normal pieces
  ByteTrie user_defined_;
  float unknown_score_ = 0;
  float max_score_ = 0;
  PieceNormalizer normalizer_;
  PieceNormalizer denormalizer_;
};

// "<0xE3>" -> 0xE3; -1 for anything else.
int byte_of_piece(std::string_view piece) noexcept;
std::string piece_of_byte(unsigned char byte);

}  // namespace tutti::speech
