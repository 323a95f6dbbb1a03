#include "tutti/core/text.h"

#include <gtest/gtest.h>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/units.h"

namespace tutti {
namespace {

TEST(Text, SplitKeepsEmptyFields) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(split_words("  a \t b\n"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(trim(" \tx y\n"), "x y");
}

TEST(Text, ShellQuoteSurvivesARealShell) {
  for (const std::string word :
       {"plain", "two words", "it's", "$HOME `x` \"y\" \\", "", "new\nline", "*?[a]"}) {
    const auto result = run_command({.argv = {"sh", "-c", "printf %s " + shell_quote(word)}});
    EXPECT_EQ(result.out, word);
  }
}

TEST(Text, ClosestMatchOffersSlipsOnly) {
  const std::vector<std::string> keys = {"n_workers", "env", "options", "walltime"};
  EXPECT_EQ(closest_match("n_worker", keys), "n_workers");
  EXPECT_EQ(closest_match("wallitme", keys), "walltime");
  EXPECT_EQ(closest_match("Options", keys), "options");
  EXPECT_EQ(closest_match("dashboard", keys), "");
  EXPECT_EQ(closest_match("evn", keys), "env");
  EXPECT_EQ(closest_match("EMA", {"Timer", "SWA"}), "");
  EXPECT_EQ(closest_match("lrs", {"lr"}), "lr");
  EXPECT_EQ(closest_match("l", {"lr"}), "lr");
  EXPECT_EQ(closest_match("lr", {"sr", "r"}), "");
  EXPECT_EQ(closest_match("x", {"y"}), "");
}

TEST(Units, Bytes) {
  EXPECT_EQ(parse_bytes("32GB"), 32000000000U);
  EXPECT_EQ(parse_bytes("1 GiB"), 1073741824U);
  EXPECT_EQ(parse_bytes("6.5gib"), 6979321856U);
  EXPECT_EQ(parse_bytes("16G"), 16000000000U);
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  for (const char* bad : {"", "GB", "5 foos", "-1", "1e400", "99999999EB"})
    EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(Units, Durations) {
  EXPECT_EQ(parse_duration("04:00:00"), 14400);
  EXPECT_EQ(parse_duration("10:30"), 630);
  EXPECT_EQ(parse_duration("1-12:00:00"), 129600);
  EXPECT_EQ(parse_duration("1-12"), 129600);
  EXPECT_EQ(parse_duration("00:12:00:00"), 43200);
  EXPECT_EQ(parse_duration("2h30m"), 9000);
  EXPECT_EQ(parse_duration("1.5"), 1.5);
  for (const char* bad : {"", "soon", "1:2:3:4:5", "5x", "-3", "1:-2"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(Units, Formats) {
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_duration(0.25), "250 ms");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(7800), "2h10m");
}

TEST(Crc32c, KnownValuesAndContinuation) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c("56789", crc32c("1234")), 0xE3069283U);
  EXPECT_EQ(crc32c_combine(crc32c("1234"), crc32c("56789"), 5), 0xE3069283U);
  EXPECT_EQ(crc32c_combine(crc32c("123456789"), crc32c(""), 0), 0xE3069283U);
  const std::string large(1'000'003, 'x');
  EXPECT_EQ(crc32c_combine(crc32c("ab"), crc32c(large), large.size()), crc32c("ab" + large));
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
}

TEST(Json, ErrorsNameTheSource) {
  try {
    parse_json("{\"a\": }", "results.jsonl:3");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_EQ(std::string(e.what()).substr(0, 31), "results.jsonl:3: not valid JSON");
  }
  EXPECT_EQ(to_json_line({{"b", 1}, {"a", "\xff"}}), "{\"b\":1,\"a\":\"\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace tutti
