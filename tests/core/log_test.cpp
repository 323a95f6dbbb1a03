#include "tutti/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

TEST(Log, FileGetsEveryLineAsJsonWithRankAndStage) {
  TempFolder folder;
  const auto path = folder.path() / "logs" / "train.jsonl";
  log::configure({.level = log::Level::kOff, .rank = 3, .stage = "train", .jsonl_path = path});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) log::debug("thread {} line {} \"quoted\"\n", t, i);
    });
  }
  for (auto& thread : threads) thread.join();
  log::configure({});
  const auto lines = split(trim(read_file(path)), '\n');
  ASSERT_EQ(lines.size(), 400U);
  for (const auto& line : lines) {
    const Json record = parse_json(line, "log");
    EXPECT_EQ(record["rank"], 3);
    EXPECT_EQ(record["stage"], "train");
    EXPECT_EQ(record["level"], "debug");
  }
}

TEST(Log, TerminalLinesShowLevelStageAndRank) {
  testing::internal::CaptureStderr();
  log::configure({.level = log::Level::kWarning, .rank = 1, .stage = "infer"});
  log::info("not shown");
  log::warning("disk {} % full", 91);
  log::configure({});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::EndsWith(" [infer] [rank 1] warning: disk 91 % full\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("not shown")));
}

}  // namespace
}  // namespace tutti
