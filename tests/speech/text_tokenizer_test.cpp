#include "tutti/speech/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/speech/text/cleaners.h"
#include "tutti/speech/text/token_list.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Utf8, BadBytesAreOneCharacterEach) {
  EXPECT_THAT(split_characters("a\xC3\xA9\xFF\xE3\x81"),
              ElementsAre("a", "é", "\xFF", "\xE3", "\x81"));
  EXPECT_FALSE(first_code_point("\xC0\x80").valid) << "overlong";
  EXPECT_FALSE(first_code_point("\xED\xA0\x80").valid) << "surrogate";
  EXPECT_FALSE(first_code_point("\xF4\x90\x80\x80").valid) << "above U+10FFFF";
  for (char32_t c : {U'\0', U'a', U'\x7FF', U'\x800', U'\xFFFF', U'\x10000', U'\x10FFFF'}) {
    std::string text;
    append_utf8(text, c);
    EXPECT_EQ(first_code_point(text).value, c);
    EXPECT_EQ(first_code_point(text).size, text.size());
  }
}

TEST(CharTokenizer, SpacesAndWholeSymbols) {
  const auto tokenizer =
      make_tokenizer({.token_type = "char", .non_linguistic_symbols = {"<a>", "<ab>"}});
  EXPECT_THAT(tokenizer->pieces("né o<ab>"), ElementsAre("n", "é", "<space>", "o", "<ab>"));
  EXPECT_EQ(tokenizer->text({"n", "é", "<space>", "o"}), "né o");
  const CharTokenizer dropping(
      {.non_linguistic_symbols = {"<a>"}, .remove_non_linguistic_symbols = true});
  EXPECT_THAT(dropping.pieces("x<a>y"), ElementsAre("x", "y"));
}

TEST(WordTokenizer, WhiteSpaceOrDelimiter) {
  EXPECT_THAT(WordTokenizer().pieces("  two  words "), ElementsAre("two", "words"));
  EXPECT_EQ(WordTokenizer().text({"two", "words"}), "two words");
  const WordTokenizer comma({.delimiter = ","});
  EXPECT_EQ(comma.text(comma.pieces("a b,c")), "a b,c");
}

TEST(MakeTokenizer, SaysWhatIsWrong) {
  EXPECT_THAT([] { make_tokenizer({.token_type = "chra"}); },
              ThrowsMessage<ConfigError>(HasSubstr("did you mean 'char'")));
  EXPECT_THAT([] { make_tokenizer({.token_type = "bpe"}); },
              ThrowsMessage<ConfigError>(HasSubstr("bpemodel")));
  EXPECT_THROW(make_tokenizer({.token_type = "bpe", .bpemodel = "/absent/x.model"}), IoError);
}

TEST(TokenList, ReadsWhatItWroteAndFallsBackToUnk) {
  TempFolder folder;
  const TokenList built = build_token_list({"b a b", "c b"}, WordTokenizer());
  EXPECT_THAT(built.tokens(), ElementsAre("<blank>", "<unk>", "b", "a", "c", "<sos/eos>"));
  built.write(folder.path() / "tokens.txt");
  const TokenList tokens = TokenList::read(folder.path() / "tokens.txt");
  EXPECT_EQ(tokens.tokens(), built.tokens());
  EXPECT_EQ(tokens.id("zebra"), 1);
  EXPECT_EQ(tokens.find("zebra"), -1);
  EXPECT_THROW(tokens.token(6), DataError);
  EXPECT_THROW(tokens.token(-1), DataError);
  EXPECT_THAT(build_token_list({"b a b"}, WordTokenizer(), 1).tokens(),
              ElementsAre("<blank>", "<unk>", "b", "<sos/eos>"));
}

TEST(TokenList, KeepsASpaceTokenAndRefusesDoubles) {
  TempFolder folder;
  write_file_atomic(folder.path() / "t", "<blank>\r\n \r\n<sos/eos>");
  EXPECT_THAT(TokenList::read(folder.path() / "t").tokens(),
              ElementsAre("<blank>", " ", "<sos/eos>"));
  write_file_atomic(folder.path() / "t", "a\nb\na\n");
  EXPECT_THAT([&] { TokenList::read(folder.path() / "t"); },
              ThrowsMessage<DataError>(HasSubstr("t:3: token 'a' is already on line 1")));
  write_file_atomic(folder.path() / "t", "");
  EXPECT_THROW(TokenList::read(folder.path() / "t"), DataError);
  EXPECT_THROW(TokenList({"a"}).id("b"), DataError);
}

TEST(Cleaners, ByName) {
  EXPECT_EQ(TextCleaner({"lower"})("ÄBC ΣΑΣ ДА"), "äbc σασ да");
  EXPECT_EQ(TextCleaner({"upper"})("äbc да"), "ÄBC ДА");
  EXPECT_EQ(TextCleaner({"remove_punctuation"})("It’s, well... 日本。  ok!"), "It's well 日本 ok");
  EXPECT_EQ(TextCleaner({"whisper_basic"})("Hello [noise], <x> World (laughs) () ＡＢ!"),
            "hello world ab");
  EXPECT_EQ(TextCleaner({"whisper_basic"})("unclosed [ bracket ( here"), "unclosed bracket here");
  EXPECT_EQ(TextCleaner({"tacotron"})("(Hello-World);   &  jr. & dr."),
            "HELLO WORLD, AND JUNIOR AND DOCTOR");
  EXPECT_EQ(TextCleaner({"lower", "remove_punctuation"})("A-B"), "ab");
  EXPECT_EQ(TextCleaner()("As Is "), "As Is ");
  EXPECT_THAT([] { TextCleaner({"whisper_basi"}); },
              ThrowsMessage<ConfigError>(HasSubstr("did you mean 'whisper_basic'")));
  EXPECT_THROW(TextCleaner({"jaconv"}), ConfigError);
}

}  // namespace
}  // namespace tutti::speech
