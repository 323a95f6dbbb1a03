#include "tutti/core/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/file.h"
#include "tutti/core/rounding.h"

namespace tutti {
namespace {

using testing::ElementsAre;

TEST(Fingerprint, KnowsFilesByContentAndPathsByTheirPlace) {
  TempFolder here, there;
  for (const auto* folder : {&here, &there}) write_file_atomic(folder->path() / "a", "weights");
  const auto of = [](const TempFolder& folder) {
    Fingerprint f;
    f.add_file("weights", folder.path() / "a");
    f.add("config", {{"list", (folder.path() / "b").string()}, {"other", "/usr/share"}},
          {{"recipe_dir", folder.path()}});
    return f;
  };
  EXPECT_EQ(of(here), of(there));
  EXPECT_EQ(of(here).hash(), of(there).hash());
  EXPECT_EQ(of(here).json()["config"]["list"], "${recipe_dir}/b");
  const Fingerprint before = of(here);
  write_file_atomic(here.path() / "a", "weight5");
  EXPECT_THAT(of(here).changes_since(before), ElementsAre("weights: other content"));
}

TEST(Fingerprint, SaysWhatChangedAndDoesNotMindTheOrderOfKeys) {
  Fingerprint a, b, c;
  a.add("model", {{"beam_size", 5}, {"penalty", 0.1}});
  b.add("model", {{"penalty", 0.1}, {"beam_size", 5}});
  EXPECT_EQ(a, b);
  c.add("model", {{"beam_size", 8}, {"nbest", 2}});
  EXPECT_THAT(c.changes_since(a),
              ElementsAre("model.beam_size: was 5, is 8", "model.penalty: was 0.1, is nothing",
                          "model.nbest: was nothing, is 2"));
  EXPECT_TRUE(a.changes_since(b).empty());
  EXPECT_EQ(Fingerprint(parse_json(a.json().dump(), "record")), a);
}

TEST(Fingerprint, NamesWhatChangedInsideListsAndShowsNoRawBlocks) {
  Fingerprint a, b;
  a.add("sets", Json::array({{{"split", "train"}, {"rate", 8000}}}));
  b.add("sets", Json::array({{{"split", "train"}, {"rate", 16000}}}));
  EXPECT_THAT(b.changes_since(a), ElementsAre("sets.0.rate: was 8000, is 16000"));
  a.add("logger", nullptr).add("effects", Json::array({1, 2}));
  b = Fingerprint(a.json());
  b.add("logger", {{"_target_", "csv"}, {"save_dir", "x"}}).add("effects", Json::array({1, 2, 3}));
  EXPECT_THAT(b.changes_since(a), ElementsAre("logger: was nothing, is csv",
                                              "effects: was a list of 2, is a list of 3"));
}

TEST(Fingerprint, AMissingFileIsNotAnError) {
  TempFolder folder;
  EXPECT_EQ(content_mark(folder.path() / "none"), "missing");
}

TEST(Rounding, LeavesTheDigitsThatMeanSomething) {
  EXPECT_EQ(round_decimals(-112.99391563978261, 2), -112.99);
  EXPECT_EQ(round_decimals(-112.99391569003721, 2), -112.99);
  EXPECT_FALSE(std::signbit(round_decimals(-0.001, 2)));
  EXPECT_EQ(round_significant(123456.0, 3), 123000);
  EXPECT_EQ(round_significant(-0.00123456, 3), -0.00123);
  EXPECT_EQ(round_significant(0, 3), 0);
  for (const auto& [score, written] :
       {std::pair(-399.315, -399.0), std::pair(-1399.3, -1400.0), std::pair(-39.9315, -39.9),
        std::pair(-0.39931, -0.4), std::pair(-9.996, -10.0), std::pair(0.12345, 0.12)})
    EXPECT_EQ(round_score(score), written) << score;
  EXPECT_FALSE(std::signbit(round_score(-0.001)));
  EXPECT_TRUE(std::isinf(round_score(-INFINITY)));
}

}  // namespace
}  // namespace tutti
