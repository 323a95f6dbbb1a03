// Our reader against the sentencepiece programs, on text that is hard on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/speech/text/sentencepiece.h"
#include "tutti/speech/text/sentencepiece_train.h"
#include "tutti/speech/text/token_list.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {
namespace {

// Alphabets whose words make up the training text.
const std::vector<std::string>& alphabets() {
  static const std::vector<std::string> kAlphabets = {
      "abcdefghijklmnopqrstuvwxyz",
      "ABCDEFGHIJKLMNOPQRSTUVWXYZ'0123456789",
      "あいうえおかきくけこさしすせそアイウエオカキクケコ日本語東京大学音声認識",
      "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
      "абвгдежзийклмнопрстуфхцчшщыьэюя",
      "àâäçéèêëîïôöùûüßñãõ"};
  return kAlphabets;
}

std::string random_word(Random& rng) {
  const auto characters = split_characters(alphabets()[rng.below(alphabets().size())]);
  std::string word;
  // Skewed towards the first letters, so that there is something to merge.
  for (std::uint64_t n = 1 + rng.below(7); n > 0; --n)
    word += characters[std::min(rng.below(characters.size()), rng.below(characters.size()))];
  return word;
}

std::string training_text() {
  Random rng({7});
  std::vector<std::string> words;
  for (int i = 0; i < 300; ++i) words.push_back(random_word(rng));
  std::string text;
  for (int line = 0; line < 1500; ++line) {
    for (std::uint64_t n = 1 + rng.below(10); n > 0; --n)
      text +=
          words[std::min(rng.below(words.size()), rng.below(words.size()))] + (n > 1 ? " " : "");
    text += '\n';
  }
  return text;
}

// Lines to encode: known words, unseen characters, emoji, combining marks, NFKC cases, odd spaces,
// the special pieces as text.
std::vector<std::string> test_lines() {
  std::vector<std::string> lines = {"hello world",
                                    " leading and  double   spaces ",
                                    "\ttabs\tand\xC2\xA0no-break\xE3\x80\x80wide",
                                    "ｆｕｌｌ　ｗｉｄｔｈ ＡＢＣ１２３",
                                    "① ② ㌔ ﬁne ﬂow ½ ² ㍿ ﷺ",
                                    "e\xCC\x81 a\xCC\x8A n\xCC\x83 か\xE3\x82\x99 は\xE3\x82\x9A",
                                    "ｶﾞｷﾞｸﾞ ﾊﾟﾋﾟ",
                                    "👩‍👩‍👧‍👦 🇯🇵 👍🏽 ❤️ 😀😀",
                                    "العربية مَرْحَبًا ﻻ ﷲ",
                                    "日本語の音声認識、東京大学。",
                                    "한국어 각 가 힣",
                                    "ไทย हिन्दी தமிழ்",
                                    "<s> </s> <unk> <blank> <sos/eos> ▁ ▁▁a",
                                    "<0xE3> <0x41>",
                                    "ａ\xCC\x81 Å Å Ω Ω",
                                    "zero\xE2\x80\x8Bwidth\xEF\xBB\xBF joiner\xE2\x80\x8D",
                                    "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛 𠮷野家",
                                    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
                                    "x",
                                    "é"};
  Random rng({11});
  for (int i = 0; i < 150; ++i) {
    std::string line;
    for (std::uint64_t n = 1 + rng.below(12); n > 0; --n) {
      line += random_word(rng);
      if (rng.below(4) == 0) append_utf8(line, static_cast<char32_t>(0xA1 + rng.below(0x2000)));
      if (rng.below(16) == 0) append_utf8(line, static_cast<char32_t>(0x1F300 + rng.below(0x300)));
      if (n > 1) line += rng.below(8) == 0 ? "  " : " ";
    }
    lines.push_back(line);
  }
  return lines;
}

std::string run_spm(const std::vector<std::string>& argv, const std::string& input) {
  const CommandResult result =
      run_command({.argv = argv, .stdin_text = input, .capture_limit = 64 << 20});
  EXPECT_TRUE(result.ok()) << result.describe();
  return result.out;
}

struct Case {
  std::string model_type;
  int vocab_size;
  bool byte_fallback;
  std::vector<std::string> user_defined;
  std::string rule = "nmt_nfkc";
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model_type << c.vocab_size << (c.byte_fallback ? "_bytes" : "")
       << (c.user_defined.empty() ? "" : "_user") << c.rule;
}

class AgainstPrograms : public testing::TestWithParam<Case> {};

TEST_P(AgainstPrograms, SamePiecesAndSameText) {
  const Case& c = GetParam();
  TempFolder folder;
  write_file_atomic(folder.path() / "train.txt", training_text());
  const SentencePieceFiles files = train_sentencepiece({.input = folder.path() / "train.txt",
                                                        .save_path = folder.path(),
                                                        .vocab_size = c.vocab_size,
                                                        .character_coverage = 0.99,
                                                        .model_type = c.model_type,
                                                        .user_defined_symbols = c.user_defined,
                                                        .byte_fallback = c.byte_fallback,
                                                        .normalization_rule_name = c.rule});
  ASSERT_TRUE(files.complete());
  const SentencePieceTokenizer ours(files.model);

  const std::vector<std::string> lines = test_lines();
  const std::string input = join(lines, "\n") + "\n";
  const auto model = "--model=" + files.model.string();
  const std::vector<std::string> theirs = split(run_spm({"spm_encode", model}, input), '\n');
  ASSERT_EQ(theirs.size(), lines.size() + 1);
  std::string encoded;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(join(ours.pieces(lines[i]), " "), theirs[i]) << lines[i];
    encoded += theirs[i] + "\n";
  }
  // Decoding, of whole lines and of pieces in random order and number.
  std::vector<std::vector<std::string>> sequences;
  for (std::size_t i = 0; i < lines.size(); ++i) sequences.push_back(ours.pieces(lines[i]));
  Random rng({3});
  for (int i = 0; i < 100; ++i) {
    std::vector<std::string> pieces;
    for (std::uint64_t n = 1 + rng.below(8); n > 0; --n) {
      const auto& piece =
          ours.piece(static_cast<int>(rng.below(static_cast<std::uint64_t>(ours.num_pieces()))));
      // A newline byte would end the line for the program.
      if (piece.text.find(' ') == std::string::npos && piece.text != "<0x0A>")
        pieces.push_back(piece.text);
    }
    sequences.push_back(pieces);
  }
  std::string to_decode;
  for (const auto& pieces : sequences) to_decode += join(pieces, " ") + "\n";
  const std::vector<std::string> decoded =
      split(run_spm({"spm_decode", model, "--input_format=piece"}, to_decode), '\n');
  ASSERT_EQ(decoded.size(), sequences.size() + 1);
  for (std::size_t i = 0; i < sequences.size(); ++i)
    EXPECT_EQ(ours.text(sequences[i]), decoded[i]) << join(sequences[i], " ");
}

INSTANTIATE_TEST_SUITE_P(
    Models, AgainstPrograms,
    testing::Values(Case{"unigram", 250, false, {}}, Case{"unigram", 430, false, {}},
                    Case{"unigram", 650, true, {}},
                    Case{"unigram", 400, false, {"<laugh>", "ab", "日本"}},
                    Case{"unigram", 300, false, {}, "identity"}, Case{"bpe", 250, false, {}},
                    Case{"bpe", 800, false, {}}, Case{"bpe", 700, true, {}},
                    Case{"bpe", 400, false, {"<laugh>", "ab", "日本"}},
                    Case{"bpe", 400, false, {}, "nfkc_cf"}, Case{"char", 150, false, {}},
                    Case{"word", 250, false, {}}));

TEST(SentencePieceTraining, TokensAreBlankUnkPiecesAndSosEos) {
  TempFolder folder;
  write_file_atomic(folder.path() / "train.txt", training_text());
  const auto files = train_sentencepiece({.input = folder.path() / "train.txt",
                                          .save_path = folder.path() / "bpe",
                                          .vocab_size = 300});
  const TokenList tokens = TokenList::read(files.tokens);
  const SentencePieceTokenizer model(files.model);
  EXPECT_EQ(tokens.size(), 300);
  EXPECT_EQ(tokens.token(0), "<blank>");
  EXPECT_EQ(tokens.token(1), "<unk>");
  EXPECT_EQ(tokens.token(2), model.piece(3).text);
  EXPECT_EQ(tokens.token(299), "<sos/eos>");

  TextCodec codec(tokens, make_tokenizer({.token_type = "bpe", .bpemodel = files.model}));
  const auto encoded = codec.encode("abc bad");
  EXPECT_EQ(encoded.ids.size(), encoded.pieces.size());
  EXPECT_EQ(codec.decode(encoded.ids), "abc bad");
}

TEST(SentencePieceTraining, WhatAKilledOneHasLeftIsRemovedByTheNext) {
  TempFolder folder;
  write_file_atomic(folder.path() / "train.txt", training_text());
  make_folders(folder.path() / "bpe.training-killed");
  train_sentencepiece({.input = folder.path() / "train.txt",
                       .save_path = folder.path() / "bpe/",
                       .vocab_size = 300});
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"train.txt", "bpe"}));
}

TEST(SentencePieceTraining, RefusedOptionsAreConfigErrorsAndLeaveNothing) {
  TempFolder folder;
  write_file_atomic(folder.path() / "train.txt", "a b\n");
  const SentencePieceTraining config{.input = folder.path() / "train.txt",
                                     .save_path = folder.path() / "out",
                                     .vocab_size = 90000};
  EXPECT_THAT([&] { train_sentencepiece(config); },
              testing::ThrowsMessage<ConfigError>(testing::AllOf(
                  testing::StartsWith("tokenizer.vocab_size: got 90000, expected at most "),
                  testing::Not(testing::HasSubstr("LOG(INFO)")))));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
  SentencePieceTraining absent = config;
  absent.input = folder.path() / "absent.txt";
  EXPECT_THROW(train_sentencepiece(absent), IoError);
}

// A model to damage, trained once for all cases.
const std::string& model_bytes() {
  static const std::string kBytes = [] {
    TempFolder folder;
    write_file_atomic(folder.path() / "train.txt", training_text());
    return read_file(train_sentencepiece({.input = folder.path() / "train.txt",
                                          .save_path = folder.path(),
                                          .vocab_size = 250,
                                          .character_coverage = 0.98,
                                          .model_type = "unigram"})
                         .model);
  }();
  return kBytes;
}

// Reading either works (and then so does everything else) or throws DataError.
bool survives(const std::string& bytes) {
  try {
    const SentencePieceTokenizer tokenizer(parse_sentencepiece_file(bytes, "x.model"), "x.model");
    for (const char* text : {"hello 日本 ﬁne \xFF\xC3", "ｆｕｌｌ e\xCC\x81 <0x41>"})
      tokenizer.text(tokenizer.pieces(text));
    return true;
  } catch (const DataError&) {
    return false;
  }
}

TEST(DamagedModel, EveryTruncationIsADataErrorOrAShorterModel) {
  const std::string& bytes = model_bytes();
  ASSERT_TRUE(survives(bytes));
  Random rng({5});
  for (int i = 0; i < 300; ++i) survives(bytes.substr(0, rng.below(bytes.size())));
  EXPECT_FALSE(survives(""));
  EXPECT_FALSE(survives(bytes.substr(0, 1)));
}

TEST(DamagedModel, RandomBytesNeverCrash) {
  Random rng({6});
  const std::string& good = model_bytes();
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good;
    for (std::uint64_t n = 1 + rng.below(40); n > 0; --n)
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    survives(bytes);
  }
  for (int i = 0; i < 400; ++i) {
    std::string bytes(rng.below(200), '\0');
    for (char& c : bytes) c = static_cast<char>(rng.below(256));
    EXPECT_FALSE(survives(bytes));
  }
}

TEST(DamagedModel, MessageNamesTheFile) {
  TempFolder folder;
  const auto path = folder.path() / "bad.model";
  write_file_atomic(path, std::string("\x0a\xff\xff\x03xyz"));
  try {
    SentencePieceTokenizer tokenizer(path);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("bad.model"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tutti::speech
