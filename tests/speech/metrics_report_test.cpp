#include "tutti/speech/metrics/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"

namespace tutti::speech {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(ErrorRate, WordsCharactersAndTokens) {
  ErrorRate wer({.kind = ErrorKind::kWord});
  wer.add({"u1", "s1"}, "the cat sat", "the hat sat down");
  EXPECT_EQ(wer.total(), (EditCounts{2, 1, 0, 1}));
  ErrorRate cer({.kind = ErrorKind::kCharacter});
  cer.add({"u1", "s1"}, "a bé", "a be");
  EXPECT_EQ(cer.total(), (EditCounts{3, 1, 0, 0})) << "the space is a character, é is one";
  EXPECT_THROW(ErrorRate({.kind = ErrorKind::kToken}), ConfigError);
  ErrorRate ter({.kind = ErrorKind::kToken, .tokenizer = make_tokenizer({.token_type = "word"})});
  ter.add({"u1", ""}, "a b", "a");
  EXPECT_EQ(ter.total().deletions, 1);
}

TEST(ErrorRate, CleanersApplyToBothSidesAndEmptyTextIsADot) {
  ErrorRate wer({.cleaners = {"whisper_basic"}});
  wer.add({"u1", ""}, "Hello, World!", "hello [noise] world");
  EXPECT_EQ(wer.total().errors(), 0);
  wer.add({"u2", ""}, "", "");
  wer.add({"u3", ""}, "", "word");
  EXPECT_EQ(wer.total(), (EditCounts{3, 1, 0, 0}));
  ErrorRate strict({.empty_text = ""});
  strict.add({"u3", ""}, "", "word");
  EXPECT_EQ(strict.total(), (EditCounts{0, 0, 0, 1}));
}

TEST(ErrorRate, ConfidenceIsSeededOrderFreeAndHoldsTheRate) {
  ErrorRate forwards({}), backwards({});
  const auto add = [](ErrorRate& wer, int i) {
    wer.add({"u" + std::to_string(i), "s" + std::to_string(i % 3)}, "a b c d",
            i % 4 == 0 ? "a x c" : "a b c d");
  };
  for (int i = 0; i < 100; ++i) add(forwards, i), add(backwards, 99 - i);
  const Confidence c = forwards.confidence(5), d = backwards.confidence(5);
  EXPECT_EQ(c.low, d.low);
  EXPECT_EQ(c.high, d.high);
  EXPECT_LT(c.low, 100 * forwards.total().error_rate());
  EXPECT_GT(c.high, 100 * forwards.total().error_rate());
  EXPECT_NE(forwards.confidence(6).low, 0);
  EditCounts sum;
  for (const auto& [speaker, counts] : forwards.by_speaker()) sum += counts;
  EXPECT_EQ(sum, forwards.total());
  EXPECT_EQ(ErrorRate({}).confidence().high, 0);
}

TEST(Report, AlignmentTextLinesUp) {
  ErrorRate wer({});
  wer.add({"u1", "s1"}, "the 日本 sat", "the x sat on");
  EXPECT_THAT(alignment_text(wer), HasSubstr("u1 s1: 66.67 % (1 S, 0 D, 1 I of 3)\n"
                                             "REF:  the 日本 sat **\n"
                                             "HYP:  the x    sat on\n"
                                             "EVAL:     S        I\n"));
  wer.add({"u2", "s1"}, "fine", "fine");
  EXPECT_THAT(alignment_text(wer, false), Not(HasSubstr("u2")));
  EXPECT_THAT(alignment_text(wer),
              HasSubstr("WER: 50.00 % (1 S, 0 D, 1 I of 4), 2 utterances, 1 with errors"));
  EXPECT_THAT(speaker_table(wer),
              HasSubstr("s1             2         4        1        0        1    50.00"));
}

TEST(Report, JsonKeepsTwoEntriesOfOneClass) {
  ErrorRate raw({}), cleaned({.cleaners = {"lower"}});
  for (ErrorRate* wer : {&raw, &cleaned}) wer->add({"u", ""}, "A b", "a b");
  MetricsReport report;
  report.add("m.WER", "test", raw, 0);
  report.add("m.WER", "test", cleaned, 1);
  const Json json = report.to_json();
  EXPECT_EQ(json["m.WER"]["test"]["WER"], 50.0);
  EXPECT_EQ(json["m.WER#2"]["test"]["WER"], 0.0);
  EXPECT_EQ(json["m.WER"]["test"]["substitutions"], 1);
  EXPECT_THAT(report.to_text(), HasSubstr("test     WER#2 0.00 %"));
}

TEST(Report, HtmlEscapesEverything) {
  ErrorRate wer({});
  wer.add({"<id>", "\"sp\""}, "<script>alert(1)</script>", "a&b");
  MetricsReport report;
  report.add("m.WER", "<test>", wer);
  const std::string html = report.to_html("t & \"t\"");
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(html, Not(HasSubstr("<test>")));
  EXPECT_THAT(html, Not(HasSubstr("<id>")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_THAT(html, HasSubstr("a&amp;b"));
  EXPECT_THAT(html, HasSubstr("<title>t &amp; &quot;t&quot;</title>"));
}

TEST(Report, HtmlShowsTheWorstFirstWithPlainNamesAndAudio) {
  ErrorRate some({}), none({});
  some.add({"fine", ""}, "a b", "a b");
  some.add({"one", ""}, "a b c", "a x c");
  some.add({"three", ""}, "a b c", "");
  none.add({"fine", ""}, "a", "a");
  MetricsReport report;
  report.add("espnet3.systems.asr.metrics.wer.WER", "clean", none);
  report.add("espnet3.systems.asr.metrics.wer.WER", "noisy", some);
  const std::string html = report.to_html("t", [](const std::string& set, const std::string& id) {
    return id == "three" ? "clips/" + set + "/three.wav" : "";
  });
  EXPECT_LT(html.find("<b>three "), html.find("<b>one "));
  EXPECT_THAT(html, HasSubstr("<h2>noisy: WER</h2>\n<p>2 of 3 utterances have errors"));
  EXPECT_THAT(html, HasSubstr("<h2>clean: WER</h2>\n<p>0 of 1 utterances have errors.</p>"));
  EXPECT_THAT(html, Not(HasSubstr("espnet3.systems"))) << "class paths are for programs";
  EXPECT_THAT(html, HasSubstr("src=\"clips/noisy/three.wav\""));
  EXPECT_EQ(html.find("<audio"), html.rfind("<audio")) << "only where there is something to hear";
}

TEST(TextPairs, JoinedByIdWhateverTheOrder) {
  TempFolder folder;
  write_file_atomic(folder.path() / "ref", "b one two\na three\nc\n");
  write_file_atomic(folder.path() / "hyp", "a 3\nc x\nb one two\n");
  const auto pairs = read_text_pairs(folder.path() / "ref", folder.path() / "hyp");
  ASSERT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs[0].id + pairs[0].hypothesis, "bone two");
  EXPECT_EQ(pairs[2].reference, "");
  write_file_atomic(folder.path() / "hyp", "a 3\nb one two\n");
  EXPECT_THAT([&] { read_text_pairs(folder.path() / "ref", folder.path() / "hyp"); },
              ThrowsMessage<DataError>(HasSubstr("hyp: 1 utterances are missing: c")));
  write_file_atomic(folder.path() / "hyp", "a 3\nb 1\nc 2\nd 5\n");
  EXPECT_THAT([&] { read_text_pairs(folder.path() / "ref", folder.path() / "hyp"); },
              ThrowsMessage<DataError>(HasSubstr("ref: 1 utterances are missing: d")));
  write_file_atomic(folder.path() / "hyp", "a 3\na 3\nb 1\nc 2\n");
  EXPECT_THROW(read_text_pairs(folder.path() / "ref", folder.path() / "hyp"), DataError);
}

}  // namespace
}  // namespace tutti::speech
