// The content of a sentencepiece `.model` file, read from its protobuf bytes by hand.
//
//   SentencePieceFile file = read_sentencepiece_file("exp/bpe.model");
//   file.pieces[5].text, file.pieces[5].score
//
// Why not libsentencepiece: linked next to libtorch it crashes before main (two protobuf copies in
// one process). Throws DataError with the file's name for anything that is not a whole, consistent
// model (truncated, duplicate pieces, no <unk>, missing byte pieces); IoError when it cannot be
// read. Unknown fields are skipped, as protobuf does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::speech {

enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};
enum class PieceModel { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct NormalizerSpec {
  std::string name;
  std::string precompiled_charsmap;  // see CharsMap
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

struct SentencePieceFile {
  std::vector<Piece> pieces;
  PieceModel model = PieceModel::kUnigram;
  NormalizerSpec normalizer;
  NormalizerSpec denormalizer;
  bool treat_whitespace_as_suffix = false;
  bool allow_whitespace_only_pieces = false;
  bool byte_fallback = false;
  std::string unk_surface = " \xE2\x81\x87 ";  // how a bare <unk> decodes: " ⁇ "
  int unk_id = -1;
};

// `name` is only for messages.
SentencePieceFile parse_sentencepiece_file(std::string_view bytes, const std::string& name);
SentencePieceFile read_sentencepiece_file(const std::filesystem::path& path);

}  // namespace tutti::speech
