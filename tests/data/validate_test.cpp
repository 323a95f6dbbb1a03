#include "tutti/data/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/fixtures.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

class Validate : public ::testing::Test {
 protected:
  void SetUp() override {
    write_wav(folder_.path() / "good.wav", {testing::sine(300, 1.0, 16000), 16000});
    write_wav(folder_.path() / "short.wav", {testing::sine(300, 0.01, 16000), 16000});
    write_wav(folder_.path() / "long.wav", {testing::sine(300, 3.0, 16000), 16000});
    write_wav(folder_.path() / "other.wav", {testing::sine(300, 1.0, 8000), 8000});
    write_wav(folder_.path() / "silent.wav", {std::vector<float>(16000, 0.0F), 16000});
    write_wav(folder_.path() / "loud.wav", {testing::sine(300, 1.0, 16000, 4.0), 16000});
    write_file_atomic(folder_.path() / "bad.wav", "RIFF but no");
  }
  std::shared_ptr<const Dataset> dataset(
      const std::vector<std::pair<std::string, std::string>>& rows) {
    std::string text;
    for (const auto& [name, words] : rows)
      text += to_json_line({{"id", name}, {"audio", name + ".wav"}, {"text", words}}) + "\n";
    return open_manifest(parse_jsonl_manifest(text, "m.jsonl", folder_.path()));
  }
  TempFolder folder_;
};

TEST_F(Validate, FindsEachKindOfTroubleAndNamesIt) {
  const auto data = dataset({{"good", "ab"},
                             {"short", "a"},
                             {"long", "a"},
                             {"other", ""},
                             {"silent", "ab\xC3\xA9"},
                             {"loud", std::string(30, 'a')},
                             {"bad", "a"},
                             {"missing", "b"}});
  const ValidationSettings settings{
      .max_seconds = 2, .max_text_length = 20, .characters = {"a", "b"}};
  for (const int threads : {1, 3}) {
    const ValidationReport report = validate(*data, settings, threads);
    EXPECT_EQ(report.num_utterances, 8);
    EXPECT_EQ(report.errors.at("unreadable").count, 2);
    EXPECT_THAT(report.errors.at("unreadable").examples[0], HasSubstr("m.jsonl: bad:"));
    EXPECT_THAT(report.errors.at("too_short").examples[0], HasSubstr("short: 0.010 s"));
    EXPECT_EQ(report.errors.at("too_long").count, 1);
    EXPECT_EQ(report.errors.at("empty_text").count, 1);
    EXPECT_EQ(report.errors.at("long_text").count, 1);
    EXPECT_THAT(report.errors.at("unknown_character").examples[0],
                HasSubstr("silent: '\xC3\xA9' not in the token list"));
    EXPECT_THAT(report.errors.at("mixed_sample_rates").examples[0], HasSubstr("8000 Hz: 1"));
    EXPECT_EQ(report.warnings.at("silence").count, 1);
    EXPECT_EQ(report.warnings.at("clipped").count, 1);
    EXPECT_EQ(report.num_errors(), 8);
    EXPECT_THAT(report.to_text(), HasSubstr("8 errors"));
    EXPECT_EQ(report.to_json()["errors"]["unreadable"]["count"], 2);
    // A loader that resamples takes all of them, and people still hear what their files are.
    ValidationSettings resampled = settings;
    resampled.resampled_to = 16000;
    const ValidationReport any_rate = validate(*data, resampled, threads);
    EXPECT_EQ(any_rate.errors.count("mixed_sample_rates"), 0U);
    EXPECT_THAT(any_rate.to_text(),
                HasSubstr("sample rate 8000 Hz: 1 utterances, resampled to 16000 Hz\n"));
  }
}

TEST_F(Validate, CleanDataIsOkAndPartsMergeToTheWhole) {
  const auto data = dataset({{"good", "ab"}, {"long", "a"}, {"loud", "b"}});
  const ValidationReport whole = validate(*data, {});
  EXPECT_EQ(whole.num_errors(), 0);
  EXPECT_THAT(whole.to_text(), HasSubstr("3 utterances"));
  EXPECT_DOUBLE_EQ(whole.longest_s, 3);
  ValidationReport merged;
  for (std::size_t i = 0; i < 3; ++i) merged.merge(validate_some(*data, {}, i, i + 1));
  merged.finish();
  EXPECT_EQ(merged.to_json(), whole.to_json());
  const ValidationReport none = validate(testing::FakeDataset(0), {});
  EXPECT_GT(none.num_errors(), 0);
}

}  // namespace
}  // namespace tutti::data
