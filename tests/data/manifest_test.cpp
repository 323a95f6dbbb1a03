#include "tutti/data/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class KaldiManifest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) {
    write_file_atomic(folder_.path() / name, text);
    return folder_.path() / name;
  }
  TempFolder folder_;
};

TEST_F(KaldiManifest, ReadsScpTextAndSpeakersInOrder) {
  const Manifest m =
      read_kaldi_manifest({.wav_scp = write("wav.scp", "b /x/b.wav\na /x/a.wav\r\n\n"),
                           .text = write("text", "a hello  world\nb\n"),
                           .utt2spk = write("utt2spk", "a s1\nb s2\n")});
  ASSERT_EQ(m.size(), 2U);
  EXPECT_EQ(m.uid(0), "b");
  EXPECT_EQ(m.entry(0).audio, "/x/b.wav");
  EXPECT_EQ(m.text(0), "");
  EXPECT_EQ(m.text(1), "hello  world");
  EXPECT_EQ(m.entry(1).speaker, "s1");
  EXPECT_EQ(m.find("a"), 1U);
  EXPECT_EQ(m.find("c"), TextIndex::kMissing);
}

TEST_F(KaldiManifest, SegmentsCutRecordings) {
  const Manifest m =
      read_kaldi_manifest({.wav_scp = write("wav.scp", "rec rec.wav\n"),
                           .segments = write("segments", "u1 rec 0.5 1.25\nu2 rec 2 -1\n"),
                           .root = "/corpus"});
  ASSERT_EQ(m.size(), 2U);
  EXPECT_EQ(m.entry(0).audio, "/corpus/rec.wav");
  EXPECT_DOUBLE_EQ(m.entry(0).begin_s, 0.5);
  EXPECT_DOUBLE_EQ(m.entry(0).end_s, 1.25);
  EXPECT_DOUBLE_EQ(m.entry(1).end_s, -1);
}

TEST_F(KaldiManifest, ErrorsNameFileLineAndUtterance) {
  const auto scp = write("wav.scp", "a /a.wav\nb /b.wav\n");
  EXPECT_THAT(
      error_of([&] { read_kaldi_manifest({.wav_scp = scp, .text = write("text", "a hi\n")}); }),
      HasSubstr("text: b is missing"));
  EXPECT_THAT(error_of([&] {
                read_kaldi_manifest({.wav_scp = scp, .text = write("text", "a hi\nb x\nzz y\n")});
              }),
              HasSubstr("text:3: zz: no such utterance"));
  EXPECT_THAT(error_of([&] { read_kaldi_manifest({.wav_scp = write("dup.scp", "a x\na y\n")}); }),
              HasSubstr("a appears twice"));
  EXPECT_THAT(error_of([&] { read_kaldi_manifest({.wav_scp = write("bare.scp", "a x\nb\n")}); }),
              HasSubstr("bare.scp:2: b: no audio path"));
  EXPECT_THAT(error_of([&] {
                read_kaldi_manifest({.wav_scp = scp, .segments = write("segments", "u a 3 2\n")});
              }),
              HasSubstr("segments:1: u: got begin 3 and end 2"));
  EXPECT_THAT(
      error_of([&] {
        read_kaldi_manifest({.wav_scp = scp, .segments = write("segments", "u nope 1 2\n")});
      }),
      HasSubstr("recording 'nope' is not in"));
  EXPECT_THROW(read_kaldi_manifest({.wav_scp = folder_.path() / "absent"}), IoError);
}

TEST(JsonlManifest, ReadsNamesOfOthersAndResolvesPaths) {
  const Manifest m = parse_jsonl_manifest(
      R"({"id": "a", "audio": "x.wav", "text": "hi", "num_samples": 16000, "speaker": "s"})"
      "\n"
      R"({"utt_id": 7, "audio_filepath": "/y.wav", "offset": 1.5, "duration": 2.0, "channel": 1, "other": [1]})",
      "m.jsonl", "/root");
  ASSERT_EQ(m.size(), 2U);
  EXPECT_EQ(m.entry(0).audio, "/root/x.wav");
  EXPECT_EQ(m.entry(0).num_samples, 16000U);
  EXPECT_EQ(m.uid(1), "7");
  EXPECT_EQ(m.entry(1).audio, "/y.wav");
  EXPECT_DOUBLE_EQ(m.entry(1).end_s, 3.5);
  EXPECT_EQ(m.entry(1).channel, 1);
}

TEST(JsonlManifest, RefusesWithTheLine) {
  const auto parse = [](const std::string& text) {
    return error_of([&] { parse_jsonl_manifest(text, "m.jsonl", ""); });
  };
  EXPECT_THAT(parse("{\"id\":\"a\"}\n[1]\n"), HasSubstr("m.jsonl:2: expected one JSON object"));
  EXPECT_THAT(parse("{\"audio\":\"a\"}\n"), HasSubstr("m.jsonl:1: no 'id'"));
  EXPECT_THAT(parse("{\"id\":\"a b\"}\n"), HasSubstr("white space"));
  EXPECT_THAT(parse("{\"id\":\"a\",\"text\":3}\n"), HasSubstr("'text': got 3, expected text"));
  EXPECT_THAT(parse("{\"id\":\"a\"}\n{\"id\":\"a\"}"),
              HasSubstr("m.jsonl: a: utterance id appears twice"));
  EXPECT_THAT(parse("{\"id\":\"a\",\"channel\":1.5}"), HasSubstr("expected a whole number"));
  EXPECT_THAT(parse("{\"id\":"), HasSubstr("m.jsonl:1"));
}

TEST(TsvManifest, ReadsHeaderAndRows) {
  const Manifest m = parse_tsv_manifest(
      "id\taudio\ttext\tduration\na\ta.wav\thello there\t\nb\tb.wav\t\t1.5\n", "m.tsv", "r");
  ASSERT_EQ(m.size(), 2U);
  EXPECT_EQ(m.text(0), "hello there");
  EXPECT_DOUBLE_EQ(m.entry(0).end_s, -1);
  EXPECT_DOUBLE_EQ(m.entry(1).end_s, 1.5);
  EXPECT_THAT(error_of([] { parse_tsv_manifest("audio\ttext\nx\ty\n", "m.tsv", ""); }),
              HasSubstr("no 'id' column"));
  EXPECT_THAT(error_of([] { parse_tsv_manifest("id\ttext\nx\n", "m.tsv", ""); }),
              HasSubstr("m.tsv:2: got 1 columns, the header has 2"));
}

TEST(Manifest, HashSeesAudioAndSegmentsButNotText) {
  const auto hash = [](const std::string& line) {
    return parse_jsonl_manifest(line, "m", "").hash();
  };
  const auto base = hash(R"({"id":"a","audio":"x","text":"one"})");
  EXPECT_EQ(base, hash(R"({"id":"a","audio":"x","text":"two"})"));
  EXPECT_NE(base, hash(R"({"id":"b","audio":"x"})"));
  EXPECT_NE(base, hash(R"({"id":"a","audio":"y"})"));
  EXPECT_NE(base, hash(R"({"id":"a","audio":"x","begin":1})"));
}

}  // namespace
}  // namespace tutti::data
