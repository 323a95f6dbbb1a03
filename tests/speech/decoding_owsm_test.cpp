#include "tutti/speech/decoding/owsm.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::speech {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TokenList owsm_list() {
  std::vector<std::string> tokens{"<blank>", "<unk>", "<na>",     "<nospeech>",    "<eng>",
                                  "<jpn>",   "<asr>", "<st_eng>", "<notimestamps>"};
  for (int i = 0; i <= 1500; ++i) tokens.push_back(fmt::format("<{:.2f}>", i * 0.02));
  for (const char* word : {"▁a", "▁b", "▁c", "<sop>", "<sos>", "<eos>"}) tokens.push_back(word);
  return TokenList(tokens);
}

TEST(Owsm, Prompts) {
  const TokenList list = owsm_list();
  const OwsmTokens owsm(list);
  const auto id = [&](const char* token) { return list.find(token); };
  EXPECT_THAT(owsm.prompt({}),
              ElementsAre(id("<sos>"), id("<eng>"), id("<asr>"), id("<notimestamps>")));
  EXPECT_THAT(owsm.prompt({.language = "<jpn>", .task = "<st_eng>", .timestamps = true}),
              ElementsAre(id("<sos>"), id("<jpn>"), id("<st_eng>")));
  EXPECT_THAT(owsm.prompt({.timestamps = true, .previous = std::vector<std::int64_t>{id("▁a")}}),
              ElementsAre(id("<sop>"), id("▁a"), id("<sos>"), id("<eng>"), id("<asr>")));
  EXPECT_THROW(owsm.prompt({.language = "<xyz>"}), DataError);
  EXPECT_THROW(OwsmTokens(TokenList({"<blank>", "<unk>"})), DataError);
}

TEST(Owsm, SegmentsAndWhereToGoOn) {
  const TokenList list = owsm_list();
  const OwsmTokens owsm(list);
  const auto ids = [&](const std::vector<std::string>& tokens) {
    const std::vector<int> found = list.ids(tokens);
    return std::vector<std::int64_t>(found.begin(), found.end());
  };
  const std::int64_t a = list.find("▁a"), b = list.find("▁b");
  // Complete pairs: go on after the last.
  OwsmSegments s = owsm.segments(ids({"<0.00>", "▁a", "<3.20>", "<3.40>", "▁b", "<8.00>"}));
  ASSERT_EQ(s.utterances.size(), 2u);
  EXPECT_DOUBLE_EQ(s.utterances[0].end, 3.2);
  EXPECT_THAT(s.utterances[1].tokens, ElementsAre(b));
  EXPECT_DOUBLE_EQ(s.next, 8.0);
  // The last one runs into the end of the window: it belongs to the next.
  s = owsm.segments(ids({"<0.00>", "▁a", "<3.20>", "<20.00>", "▁b", "<29.50>"}));
  ASSERT_EQ(s.utterances.size(), 1u);
  EXPECT_DOUBLE_EQ(s.next, 20.0);
  // Alone it stays, however long.
  s = owsm.segments(ids({"<0.00>", "▁a", "<30.00>"}));
  EXPECT_THAT(s.utterances[0].tokens, ElementsAre(a));
  EXPECT_DOUBLE_EQ(s.next, 30.0);
  // Begun but not ended.
  s = owsm.segments(ids({"<0.00>", "▁a", "<3.20>", "<4.00>", "▁b"}));
  EXPECT_EQ(s.utterances.size(), 1u);
  EXPECT_DOUBLE_EQ(s.next, 4.0);
  s = owsm.segments(ids({"<1.00>", "▁a"}));
  EXPECT_DOUBLE_EQ(s.utterances[0].end, 30.0);
  // Without time tokens, and without progress, the next window is a window away.
  EXPECT_DOUBLE_EQ(owsm.segments(ids({"▁a", "▁b"})).next, 30.0);
  EXPECT_DOUBLE_EQ(owsm.segments(ids({"<0.00>", "<0.00>"})).next, 30.0);
  EXPECT_THAT(owsm.segments({}).utterances, IsEmpty());
}

}  // namespace
}  // namespace tutti::speech
