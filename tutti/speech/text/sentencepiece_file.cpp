#include "tutti/speech/text/sentencepiece_file.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/speech/text/sentencepiece.h"

namespace tutti::speech {
namespace {

// One field of a protobuf message: its number and its value as a number or as bytes.
struct Field {
  std::uint32_t number = 0;
  std::uint32_t wire_type = 0;
  std::uint64_t integer = 0;  // varint, fixed32 or fixed64
  std::string_view bytes;     // length-delimited
};

class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const std::uint64_t tag = varint();
    field = {};
    field.number = static_cast<std::uint32_t>(tag >> 3);
    field.wire_type = static_cast<std::uint32_t>(tag & 7);
    if (field.number == 0) fail("field number 0");
    switch (field.wire_type) {
      case 0:
        field.integer = varint();
        break;
      case 1:
        field.integer = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.integer = fixed(4);
        break;
      default:
        fail(fmt::format("wire type {}", field.wire_type));
    }
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: not a sentencepiece model: {}", name_, what),
                    "give a .model file written by spm_train");
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size())
      fail(fmt::format("the file ends early ({} bytes wanted, {} left)", size, bytes_.size()));
    const std::string_view head = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return head;
  }
  std::uint64_t fixed(std::size_t size) {
    const std::string_view raw = take(size);
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(raw[i]);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail("a number longer than ten bytes");
  }

  std::string_view bytes_;
  const std::string& name_;
};

constexpr std::uint32_t kVarint = 0, kBytes = 2, kFixed32 = 5;

Piece parse_piece(std::string_view bytes, const std::string& name) {
  Piece piece;
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.number == 1 && f.wire_type == kBytes) {
      piece.text = std::string(f.bytes);
    } else if (f.number == 2 && f.wire_type == kFixed32) {
      const auto bits = static_cast<std::uint32_t>(f.integer);
      std::memcpy(&piece.score, &bits, sizeof bits);
    } else if (f.number == 3 && f.wire_type == kVarint) {
      if (f.integer < 1 || f.integer > 6) reader.fail(fmt::format("piece type {}", f.integer));
      piece.type = static_cast<PieceType>(f.integer);
    }
  }
  if (piece.text.empty()) reader.fail("an empty piece");
  if (!std::isfinite(piece.score)) reader.fail("a piece whose score is not a number");
  return piece;
}

NormalizerSpec parse_normalizer(std::string_view bytes, const std::string& name) {
  NormalizerSpec spec;
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.wire_type == kBytes) {
      if (f.number == 1) spec.name = std::string(f.bytes);
      if (f.number == 2) spec.precompiled_charsmap = std::string(f.bytes);
    } else if (f.wire_type == kVarint) {
      if (f.number == 3) spec.add_dummy_prefix = f.integer != 0;
      if (f.number == 4) spec.remove_extra_whitespaces = f.integer != 0;
      if (f.number == 5) spec.escape_whitespaces = f.integer != 0;
    }
  }
  return spec;
}

void parse_trainer_spec(std::string_view bytes, const std::string& name, SentencePieceFile& file) {
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.wire_type == kVarint) {
      if (f.number == 3) {
        if (f.integer < 1 || f.integer > 4) reader.fail(fmt::format("model type {}", f.integer));
        file.model = static_cast<PieceModel>(f.integer);
      }
      if (f.number == 24) file.treat_whitespace_as_suffix = f.integer != 0;
      if (f.number == 26) file.allow_whitespace_only_pieces = f.integer != 0;
      if (f.number == 35) file.byte_fallback = f.integer != 0;
    } else if (f.wire_type == kBytes && f.number == 44) {
      file.unk_surface = std::string(f.bytes);
    }
  }
}

void check_pieces(SentencePieceFile& file, const WireReader& reader) {
  // Normal pieces and reserved ones (<unk>, control, bytes) live in two name spaces.
  std::array<std::unordered_set<std::string_view>, 2> seen;
  std::array<bool, 256> byte_found{};
  if (file.pieces.empty()) reader.fail("no pieces");
  for (std::size_t i = 0; i < file.pieces.size(); ++i) {
    const Piece& piece = file.pieces[i];
    const bool reserved = piece.type == PieceType::kUnknown || piece.type == PieceType::kControl ||
                          piece.type == PieceType::kByte;
    if (!seen[reserved ? 1 : 0].insert(piece.text).second)
      reader.fail(fmt::format("piece {} ('{}') is defined twice", i, piece.text));
    if (piece.type == PieceType::kUnknown) {
      if (file.unk_id >= 0) reader.fail("two unknown pieces");
      file.unk_id = static_cast<int>(i);
    } else if (piece.type == PieceType::kByte) {
      const int byte = byte_of_piece(piece.text);
      if (byte < 0)
        reader.fail(fmt::format("byte piece '{}' is not of the form <0xAB>", piece.text));
      byte_found[static_cast<std::size_t>(byte)] = true;
    }
  }
  if (file.unk_id < 0) reader.fail("no unknown piece");
  if (file.byte_fallback) {
    for (bool found : byte_found)
      if (!found) reader.fail("byte_fallback is set but some of the 256 byte pieces are missing");
  }
}

}  // namespace

SentencePieceFile parse_sentencepiece_file(std::string_view bytes, const std::string& name) {
  SentencePieceFile file;
  WireReader reader(bytes, name);
  for (Field f; reader.next(f);) {
    if (f.wire_type != kBytes) continue;
    if (f.number == 1) file.pieces.push_back(parse_piece(f.bytes, name));
    if (f.number == 2) parse_trainer_spec(f.bytes, name, file);
    if (f.number == 3) file.normalizer = parse_normalizer(f.bytes, name);
    if (f.number == 5) file.denormalizer = parse_normalizer(f.bytes, name);
  }
  check_pieces(file, reader);
  return file;
}

SentencePieceFile read_sentencepiece_file(const std::filesystem::path& path) {
  return parse_sentencepiece_file(read_file(path), path.string());
}

}  // namespace tutti::speech
