#include "tutti/data/pack.h"
#include "tutti/core/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/fixtures.h"
#include "tutti/data/io/archive.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

class Pack : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b", "c"})
      write_wav(folder_.path() / (std::string(name) + ".wav"),
                {testing::sine(300, 1.0, 8000), 8000});
  }
  Manifest manifest(const std::string& lines) const {
    return parse_jsonl_manifest(lines, "m.jsonl", folder_.path());
  }
  TempFolder folder_;
  const std::filesystem::path out_ = folder_.path() / "out.tta";
};

TEST_F(Pack, ArchiveGivesTheSameAudioAsTheFiles) {
  const std::string lines = R"({"id":"a","audio":"a.wav","text":"one"})"
                            "\n"
                            R"({"id":"cut","audio":"b.wav","begin":0.25,"end":0.75})"
                            "\n"
                            R"({"id":"c","audio":"c.wav"})";
  const auto files = open_manifest(manifest(lines));
  for (const std::string encoding : {"keep", "wav", "flac"})
    for (const int threads : {1, 3}) {
      const PackReport report =
          pack(manifest(lines), {.output = out_, .encoding = encoding, .num_threads = threads});
      EXPECT_EQ(report.num_packed, 3U);
      EXPECT_DOUBLE_EQ(report.seconds, 2.5);
      const auto packed = open_archive(out_);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(packed->read(i).speech, files->read(i).speech) << encoding;
        EXPECT_EQ(packed->uid(i), files->uid(i));
        EXPECT_EQ(packed->num_samples(i), packed->read(i).speech.size());
      }
      EXPECT_EQ(packed->read(0).text, "one");
    }
}

TEST_F(Pack, BadUtterancesStopByNameOrAreSkippedWithAReport) {
  const std::string lines = R"({"id":"a","audio":"a.wav"})"
                            "\n"
                            R"({"id":"gone","audio":"nope.wav"})";
  try {
    pack(manifest(lines), {.output = out_});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("m.jsonl: gone: cannot open"));
  }
  EXPECT_FALSE(std::filesystem::exists(out_));
  const PackReport report = pack(manifest(lines), {.output = out_, .on_bad = OnBad::kSkip});
  EXPECT_EQ(report.num_packed, 1U);
  ASSERT_EQ(report.skipped.size(), 1U);
  EXPECT_EQ(report.skipped[0].uid, "gone");
  EXPECT_EQ(report.to_json()["skipped"][0]["id"], "gone");
}

TEST_F(Pack, RunsCommandsOnlyWhenAllowed) {
  write_file_atomic(folder_.path() / "wav.scp",
                    "p cat " + shell_quote((folder_.path() / "a.wav").string()) + " |\n");
  const Manifest list = read_kaldi_manifest({.wav_scp = folder_.path() / "wav.scp"});
  EXPECT_THROW(open_manifest(read_kaldi_manifest({.wav_scp = folder_.path() / "wav.scp"}))->read(0),
               DataError);
  EXPECT_THROW(pack(list, {.output = out_}), DataError);
  EXPECT_EQ(pack(list, {.output = out_, .run_commands = true}).num_packed, 1U);
  EXPECT_EQ(open_archive(out_)->read(0).speech.size(), 8000U);
}

}  // namespace
}  // namespace tutti::data
